#include "offload/eviction.h"

#include <gtest/gtest.h>

namespace strata::offload {
namespace {

PieceId piece(std::uint32_t shard) {
  return {{shard}, 0};
}

TEST(NextUsePolicy, ThePageThatIsUsedLaterRanksHigher) {
  const Schedule schedule("train", {{piece(0)}, {piece(1)}, {piece(2)}});
  const NextUsePolicy policy;
  EXPECT_LT(policy.rank({piece(1), &schedule, 1}), policy.rank({piece(2), &schedule, 1}));
  EXPECT_LT(policy.rank({piece(2), &schedule, 1}), policy.rank({piece(0), &schedule, 1}));
}

TEST(NextUsePolicy, APageOfNoModeRanksHighest) {
  const Schedule schedule("evaluate", {{piece(0)}});
  const Schedule following("train", {{piece(1)}});
  const NextUsePolicy policy;
  EXPECT_EQ(policy.rank({piece(2), &schedule, 0, &following}), Schedule::kNever);
  EXPECT_EQ(policy.rank({piece(2)}), Schedule::kNever);
}

TEST(NextUsePolicy, PagesOfTheFollowingModeRankBehindThisOneInTheOrderOfTheirFirstUse) {
  const Schedule schedule("evaluate", {{piece(0)}});
  const Schedule following("train", {{piece(1)}, {piece(2)}, {piece(0)}});
  const NextUsePolicy policy;
  const auto rank = [&](std::uint32_t shard) { return policy.rank({piece(shard), &schedule, 100, &following}); };
  EXPECT_LT(rank(0), rank(1));
  EXPECT_LT(rank(1), rank(2));
  EXPECT_LT(rank(2), Schedule::kNever);
}

TEST(NextUsePolicy, APageThatIsOnlyOverwrittenNextGoesBeforeOneThatIsReadLater) {
  const Schedule schedule("train", {{piece(0)}, {piece(1), Access::Write}, {piece(2)}});
  const NextUsePolicy policy;
  EXPECT_GT(policy.rank({piece(1), &schedule, 1}), policy.rank({piece(0), &schedule, 1}));
  EXPECT_LT(policy.rank({piece(1), &schedule, 1}), Schedule::kNever);
}

TEST(LruPolicy, ThePageUsedLongerAgoRanksHigher) {
  const LruPolicy policy;
  PageUse older{piece(0)};
  older.tick = 5;
  PageUse newer{piece(1)};
  newer.tick = 6;
  EXPECT_GT(policy.rank(older), policy.rank(newer));
}

TEST(NextUsePolicy, KeptPagesLeaveAfterAllOthersOfEitherMode) {
  const NextUsePolicy policy;
  const std::vector<ScheduledAccess> accesses = {{{{0}, 0}, Access::Read}, {{{0}, 1}, Access::Read}};
  const Schedule train("train", accesses, std::vector<PieceId>{{{0}, 1}});
  EXPECT_LT(policy.rank({{{0}, 1}, &train}), policy.rank({{{0}, 0}, &train}));
  const Schedule evaluate("evaluate", {{{{0}, 2}, Access::Read}});
  EXPECT_LT(policy.rank({{{0}, 1}, &evaluate, 0, &train}), policy.rank({{{0}, 2}, &evaluate, 0, &train}));
  EXPECT_LT(policy.rank({{{0}, 2}, &evaluate, 0, &train}), policy.rank({{{0}, 0}, &evaluate, 0, &train}));
}

}  // namespace
}  // namespace strata::offload
