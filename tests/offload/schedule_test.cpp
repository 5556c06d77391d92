#include "offload/schedule.h"

#include <gtest/gtest.h>

namespace strata::offload {
namespace {

PieceId piece(std::uint32_t shard, std::uint32_t index = 0) {
  return {{shard}, index};
}

Schedule of(std::vector<ScheduledAccess> accesses) {
  return Schedule("train", std::move(accesses));
}

TEST(Schedule, TheNextUseIsTheFirstOneAtOrAfterThePosition) {
  const Schedule schedule = of({{piece(0)}, {piece(1)}, {piece(0)}, {piece(2)}});
  EXPECT_EQ(schedule.next_use(piece(0), 0), 0U);
  EXPECT_EQ(schedule.next_use(piece(0), 1), 2U);
  EXPECT_EQ(schedule.next_use(piece(2), 0), 3U);
}

TEST(Schedule, TheNextUseContinuesInTheNextRepetition) {
  const Schedule schedule = of({{piece(0)}, {piece(1)}, {piece(0)}, {piece(2)}});
  EXPECT_EQ(schedule.next_use(piece(0), 3), 4U);
  EXPECT_EQ(schedule.next_use(piece(1), 2), 5U);
  EXPECT_EQ(schedule.next_use(piece(1), 4 * 1000 + 1), 4001U);
  EXPECT_EQ(schedule.next_use(piece(1), 4 * 1000 + 2), 4005U);
}

TEST(Schedule, APieceThatItDoesNotKnowIsNeverUsed) {
  const Schedule schedule = of({{piece(0)}});
  EXPECT_EQ(schedule.next_use(piece(1), 0), Schedule::kNever);
  EXPECT_EQ(schedule.next_use(piece(0, 1), 0), Schedule::kNever);
  EXPECT_EQ(of({}).next_use(piece(0), 0), Schedule::kNever);
}

TEST(Schedule, RepeatsItsAccesses) {
  const Schedule schedule = of({{piece(0), Access::Read}, {piece(1), Access::Write}, {piece(2), Access::ReadWrite}});
  EXPECT_EQ(schedule.at(1).piece, piece(1));
  EXPECT_EQ(schedule.at(3 * 7 + 1).piece, piece(1));
  EXPECT_EQ(schedule.at(3 * 7 + 1).access, Access::Write);
}

TEST(Schedule, APageIsHandedOverToAReaderInAnotherLaneOfTheSameRepetition) {
  const Schedule schedule = of({{piece(0), Access::Write, Lane::Updates},
                                {piece(1), Access::Write, Lane::Updates},
                                {piece(0), Access::Read, Lane::Gathers},
                                {piece(0), Access::Read, Lane::Gathers},
                                {piece(1), Access::Read, Lane::Updates},
                                {piece(0), Access::Write, Lane::EarlyUpdates}});
  std::vector<bool> handed_over;
  for (std::uint64_t i = 0; i < schedule.size(); ++i) handed_over.push_back(schedule.handed_over(6 + i));
  EXPECT_EQ(handed_over, (std::vector<bool>{false, false, true, false, false, false}));
}

TEST(Schedule, EqualAccessesHaveEqualHashesWhateverTheModeIsCalled) {
  EXPECT_EQ(Schedule("a", {{piece(1)}, {piece(2)}}).hash(), Schedule("b", {{piece(1)}, {piece(2)}}).hash());
}

TEST(Schedule, TheHashTellsOrderPieceAndAccessApart) {
  const std::uint64_t base = of({{piece(1)}, {piece(2)}}).hash();
  EXPECT_NE(of({{piece(2)}, {piece(1)}}).hash(), base);
  EXPECT_NE(of({{piece(1)}, {piece(3)}}).hash(), base);
  EXPECT_NE(of({{piece(1)}, {piece(2, 1)}}).hash(), base);
  EXPECT_NE(of({{piece(1)}, {piece(2), Access::Write}}).hash(), base);
  EXPECT_NE(of({{piece(1)}}).hash(), base);
}

TEST(Schedule, KeepsWhatItsPlanSaysAndNothingWithoutOne) {
  const std::vector<ScheduledAccess> accesses = {{{{0}, 0}, Access::Read}, {{{0}, 1}, Access::Read}};
  const Schedule planned("train", accesses, std::vector<PieceId>{{{0}, 1}});
  EXPECT_TRUE(planned.planned());
  EXPECT_FALSE(planned.keeps({{0}, 0}));
  EXPECT_TRUE(planned.keeps({{0}, 1}));
  const Schedule plain("train", accesses);
  EXPECT_FALSE(plain.planned());
  EXPECT_FALSE(plain.keeps({{0}, 1}));
}

}  // namespace
}  // namespace strata::offload
