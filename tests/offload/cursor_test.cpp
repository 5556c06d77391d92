#include "offload/cursor.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "support/test_seed.h"

namespace strata::offload {
namespace {

PieceId piece(std::uint32_t number) {
  return {{number}, 0};
}

ScheduledAccess gather(std::uint32_t number) {
  return {piece(number), Access::Read, Lane::Gathers};
}
ScheduledAccess update(std::uint32_t number) {
  return {piece(number), Access::ReadWrite, Lane::Updates};
}

// Follows and returns the positions that became past.
std::vector<std::uint64_t> follow(Cursor& cursor, std::uint32_t number, Lane lane, Cursor::Followed expected) {
  std::vector<std::uint64_t> made;
  EXPECT_EQ(cursor.follow(piece(number), lane, [&](std::uint64_t at) { made.push_back(at); }), expected);
  return made;
}

using Made = std::vector<std::uint64_t>;

TEST(Cursor, OneLaneMovesAccessByAccessAndRepeats) {
  const Schedule schedule("train", {gather(0), gather(1)});
  Cursor cursor;
  cursor.start(&schedule);
  EXPECT_EQ(cursor.position(), 0U);
  EXPECT_EQ(follow(cursor, 0, Lane::Gathers, Cursor::Followed::Next), Made{0});
  EXPECT_EQ(follow(cursor, 1, Lane::Gathers, Cursor::Followed::Next), Made{1});
  EXPECT_EQ(cursor.position(), 2U);
  EXPECT_EQ(cursor.next_use(piece(1)), 3U);
}

TEST(Cursor, UpdatesBeginInTheSecondRepetition) {
  const Schedule schedule("train", {update(5), gather(0), gather(1)});
  Cursor cursor;
  cursor.start(&schedule);
  EXPECT_EQ(cursor.position(), 1U);
  EXPECT_EQ(cursor.next_use(piece(5)), 3U);
  (void)follow(cursor, 0, Lane::Gathers, Cursor::Followed::Next);
  (void)follow(cursor, 1, Lane::Gathers, Cursor::Followed::Next);
  EXPECT_EQ(cursor.position(), 3U);
}

TEST(Cursor, EarlyUpdatesBeginInTheFirstRepetition) {
  const Schedule schedule("train", {gather(0), gather(1), {piece(5), Access::ReadWrite, Lane::EarlyUpdates}});
  Cursor cursor;
  cursor.start(&schedule);
  EXPECT_EQ(cursor.next_use(piece(5)), 2U);
  for (const std::uint32_t number : {0U, 1U, 0U}) (void)follow(cursor, number, Lane::Gathers, Cursor::Followed::Next);
  EXPECT_EQ(cursor.position(), 2U) << "the next forward passes the update";
  EXPECT_EQ(follow(cursor, 5, Lane::EarlyUpdates, Cursor::Followed::Next), Made{2});
  EXPECT_EQ(cursor.position(), 4U);
}

TEST(Cursor, AFastLaneLeavesThePositionToTheSlowOne) {
  const Schedule schedule("train", {update(5), gather(0), update(6), gather(1)});
  Cursor cursor;
  cursor.start(&schedule);
  for (const std::uint32_t number : {0U, 1U}) (void)follow(cursor, number, Lane::Gathers, Cursor::Followed::Next);
  EXPECT_EQ(cursor.position(), 4U);  // both updates wait
  EXPECT_EQ(follow(cursor, 5, Lane::Updates, Cursor::Followed::Next), Made{4});
  EXPECT_EQ(follow(cursor, 6, Lane::Updates, Cursor::Followed::Next), Made{6});
  EXPECT_EQ(cursor.position(), 5U);
  EXPECT_FALSE(cursor.made(5));
  EXPECT_TRUE(cursor.made(6));
  EXPECT_FALSE(cursor.made(7));
  EXPECT_EQ(cursor.next_use(piece(6)), 10U);  // not 6, which is past
}

TEST(Cursor, AccessesOfOnePieceInBothLanesAreToldApart) {
  const Schedule schedule("train", {update(3), gather(3), gather(4)});
  Cursor cursor;
  cursor.start(&schedule);
  (void)follow(cursor, 3, Lane::Gathers, Cursor::Followed::Next);
  (void)follow(cursor, 4, Lane::Gathers, Cursor::Followed::Next);
  EXPECT_EQ(follow(cursor, 3, Lane::Updates, Cursor::Followed::Next), Made{3});
  EXPECT_EQ(cursor.next_use(piece(3)), 4U);
}

TEST(Cursor, ALateAccessSkipsThoseBefore) {
  const Schedule schedule("train", {gather(0), gather(1), gather(2), gather(3)});
  Cursor cursor;
  cursor.start(&schedule);
  EXPECT_EQ(follow(cursor, 2, Lane::Gathers, Cursor::Followed::Skipped), (Made{0, 1, 2}));
  EXPECT_EQ(cursor.position(), 3U);
}

TEST(Cursor, AStrayLeavesItAlone) {
  std::vector<ScheduledAccess> accesses;
  for (std::uint32_t i = 0; i < 200; ++i) accesses.push_back(gather(i));
  const Schedule schedule("train", accesses);
  Cursor cursor;
  cursor.start(&schedule);
  EXPECT_EQ(follow(cursor, 150, Lane::Gathers, Cursor::Followed::Stray), Made{});
  EXPECT_EQ(follow(cursor, 999, Lane::Gathers, Cursor::Followed::Stray), Made{});
  EXPECT_EQ(follow(cursor, 0, Lane::Updates, Cursor::Followed::Stray), Made{});
  EXPECT_EQ(cursor.position(), 0U);
}

TEST(Cursor, WithoutAScheduleNothingIsNext) {
  Cursor cursor;
  cursor.start(nullptr);
  EXPECT_EQ(cursor.next_use(piece(0)), Schedule::kNever);
  const Schedule empty("train", {});
  cursor.start(&empty);
  EXPECT_EQ(cursor.next_use(piece(0)), Schedule::kNever);
}

// Any interleaving of two lanes, each in its own order, is followed exactly, and every position is made once.
TEST(Cursor, FollowsEveryInterleavingOfItsLanes) {
  const std::uint64_t seed = test::test_seed(20261129);
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int round = 0; round < 50; ++round) {
    std::vector<ScheduledAccess> accesses;
    for (int i = 0; i < 30; ++i) {
      const auto number = static_cast<std::uint32_t>(random() % 8);
      accesses.push_back(random() % 2 == 0 ? gather(number) : update(number));
    }
    accesses.push_back(gather(0));
    accesses.push_back(update(1));
    const Schedule schedule("train", accesses);
    Cursor cursor;
    cursor.start(&schedule);
    std::array<std::uint64_t, 2> next{schedule.next_of_lane(Lane::Gathers, 0),
                                      schedule.next_of_lane(Lane::Updates, schedule.size())};
    for (int step = 0; step < 200; ++step) {
      const auto lane = static_cast<Lane>(random() % 2);
      std::uint64_t& at = next[static_cast<std::size_t>(lane)];
      const std::uint32_t number = schedule.at(at).piece.shard.index;
      EXPECT_EQ(follow(cursor, number, lane, Cursor::Followed::Next), Made{at});
      at = schedule.next_of_lane(lane, at + 1);
      EXPECT_EQ(cursor.position(), std::min(next[0], next[1]));
    }
  }
}

}  // namespace
}  // namespace strata::offload
