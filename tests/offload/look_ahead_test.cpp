#include "offload/look_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <set>

#include "core/bytes.h"
#include "core/error.h"
#include "support/test_seed.h"

namespace strata::offload {
namespace {

constexpr DriveRates kDrive{1000.0 * kPageBytes, 1000.0 * kPageBytes, 0, Duplex::Full};

PieceId weight(std::uint32_t i) {
  return {{0}, i};
}
PieceId state(std::uint32_t i) {
  return {{1}, i};
}

// Forward and backward over `weights` pages, then an update that writes them and reads and writes `states` pages.
std::vector<TimedAccess> training(std::uint32_t weights, std::uint32_t states, double gather_seconds,
                                  double update_seconds) {
  std::vector<TimedAccess> step;
  for (std::uint32_t i = 0; i < weights; ++i) step.push_back({weight(i), Access::Read, gather_seconds});
  for (std::uint32_t i = weights; i-- > 0;) step.push_back({weight(i), Access::Read, gather_seconds});
  for (std::uint32_t i = 0; i < weights; ++i) step.push_back({weight(i), Access::Write, 0});
  for (std::uint32_t i = 0; i < states; ++i) step.push_back({state(i), Access::ReadWrite, update_seconds});
  return step;
}

std::size_t kept_weights(const LookAhead& plan) {
  return static_cast<std::size_t>(
      std::count_if(plan.kept.begin(), plan.kept.end(), [](PieceId p) { return p.shard.index == 0; }));
}

TEST(PassingSlots, AreThoseInUseThoseBeingReadAndThoseBeingWritten) {
  EXPECT_EQ(passing_slots(kDrive, {.slots = 100, .slot_bytes = kPageBytes, .pinned = 4}), 4U + 4 + 1);
  DriveRates half = kDrive;
  half.duplex = Duplex::Half;
  EXPECT_EQ(passing_slots(half, {.slots = 100, .slot_bytes = kPageBytes, .pinned = 4}), 4U + 4);
}

TEST(PassingSlots, CoverWhatIsOnTheWayWithinTheLatency) {
  DriveRates slow = kDrive;
  slow.latency_seconds = 0.0095;  // nine and a half pages
  EXPECT_EQ(passing_slots(slow, {.slots = 100, .slot_bytes = kPageBytes, .pinned = 4}), 4U + 11 + 11);
}

TEST(PlanLookAhead, SlotsThatPagesDoNotPassThroughKeepPages) {
  const auto step = training(0, 100, 0, 0.001);
  const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = 60, .slot_bytes = kPageBytes, .pinned = 4});
  EXPECT_EQ(plan.kept.size(), 51U);
  EXPECT_EQ(plan.look_ahead_bytes, 8 * kPageBytes);
}

TEST(PlanLookAhead, AStepThatFitsIsKeptWhole) {
  const auto step = training(10, 40, 0.001, 0.001);
  const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = 50, .slot_bytes = kPageBytes, .pinned = 4});
  EXPECT_EQ(plan.kept.size(), 50U);
}

TEST(PlanLookAhead, APoolThatOnlyLetsPagesPassKeepsNone) {
  const auto step = training(0, 100, 0, 0.001);
  const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = 5, .slot_bytes = kPageBytes, .pinned = 5});
  EXPECT_TRUE(plan.kept.empty());
  EXPECT_EQ(plan.look_ahead_bytes, 4 * kPageBytes);
}

TEST(PlanLookAhead, KeepsWeightsWhereTheirReadsAreNotHidden) {
  const auto step = training(100, 100, 0, 0.01);
  const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = 49, .slot_bytes = kPageBytes, .pinned = 4});
  EXPECT_EQ(kept_weights(plan), 40U);
}

TEST(PlanLookAhead, KeepsStatesWhereForwardAndBackwardHideTheirReads) {
  auto half = kDrive;
  half.duplex = Duplex::Half;
  const auto step = training(100, 300, 0.01, 0);
  const LookAhead plan = plan_look_ahead(step, half, {.slots = 48, .slot_bytes = kPageBytes, .pinned = 4});
  EXPECT_EQ(plan.kept.size(), 40U);
  EXPECT_EQ(kept_weights(plan), 0U);
}

// Updates of `layers` layers of two pages of weights and four of states, in a lane of their own under a forward, and
// then the backward.
std::vector<TimedAccess> under_forward(std::uint32_t layers, double gather_seconds) {
  std::vector<TimedAccess> step;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t i = 0; i < 2; ++i) step.push_back({weight(2 * layer + i), Access::Write, 0, Lane::Updates});
    for (std::uint32_t i = 0; i < 4; ++i) step.push_back({state(4 * layer + i), Access::ReadWrite, 0, Lane::Updates});
    for (std::uint32_t i = 0; i < 2; ++i) step.push_back({weight(2 * layer + i), Access::Read});
  }
  for (std::uint32_t i = 2 * layers; i-- > 0;) step.push_back({weight(i), Access::Read, gather_seconds});
  return step;
}

TEST(PlanLookAhead, KeepsStatesWhereBackwardHidesTheReadsOfWeightsAndNothingHidesTheUpdate) {
  DriveRates half = kDrive;
  half.duplex = Duplex::Half;
  const LookAhead plan =
      plan_look_ahead(under_forward(20, 0.01), half, {.slots = 50, .slot_bytes = kPageBytes, .pinned = 4});
  EXPECT_EQ(plan.kept.size(), 40U);
  EXPECT_EQ(kept_weights(plan), 0U);
}

TEST(PlanLookAhead, LeavesSlotsForWhatAnUpdateHandsToItsGather) {
  DriveRates half = kDrive;
  half.duplex = Duplex::Half;
  const LookAhead plan =
      plan_look_ahead(under_forward(20, 0.01), half, {.slots = 50, .slot_bytes = kPageBytes, .pinned = 4});
  // Eight that pages pass through, and the two pages of a layer's weights, which are not read ahead.
  EXPECT_EQ(plan.kept.size(), 50U - 8 - 2);
  EXPECT_EQ(plan.look_ahead_bytes, 7 * kPageBytes);
}

TEST(PlanLookAhead, KeepsFullPagesBeforeThoseWithFewBytes) {
  auto step = training(0, 100, 0, 0.001);
  for (std::size_t i = 0; i < step.size(); i += 2) step[i].bytes = 128;
  const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = 49, .slot_bytes = kPageBytes, .pinned = 4});
  ASSERT_EQ(plan.kept.size(), 40U);
  for (const PieceId piece : plan.kept) EXPECT_EQ(piece.piece % 2, 1U);
}

TEST(PlanLookAhead, KeptPagesAreSpreadEvenlyOverTheStep) {
  const auto step = training(0, 1000, 0, 0.001);
  for (const std::size_t slots : {50, 134, 259, 509, 700}) {
    const LookAhead plan = plan_look_ahead(step, kDrive, {.slots = slots, .slot_bytes = kPageBytes, .pinned = 4});
    std::set<std::uint32_t> kept;
    for (const PieceId piece : plan.kept) kept.insert(piece.piece);
    // In any hundred pages there are as many as in any other, to a few.
    const double expected = static_cast<double>(kept.size()) / 10;
    for (std::uint32_t first = 0; first < 1000; first += 100) {
      const auto n = std::distance(kept.lower_bound(first), kept.lower_bound(first + 100));
      EXPECT_NEAR(static_cast<double>(n), expected, 3.0) << slots << " slots, from " << first;
    }
  }
}

TEST(PlanLookAhead, APageKeptInASmallPoolIsKeptInALargerOne) {
  const std::uint64_t seed = test::test_seed(7);
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  const auto pick = [&](std::uint32_t most) { return std::uniform_int_distribution<std::uint32_t>(0, most)(random); };
  for (int round = 0; round < 30; ++round) {
    const auto step = training(pick(40), 1 + pick(80), 0.0005 * pick(10), 0.0005 * pick(10));
    DriveRates drive = kDrive;
    drive.duplex = pick(1) == 0 ? Duplex::Half : Duplex::Full;
    drive.write_bytes_per_second /= 1 + pick(3);
    std::vector<PieceId> before;
    for (std::size_t slots = 5; slots < 130; ++slots) {
      const LookAhead plan = plan_look_ahead(step, drive, {.slots = slots, .slot_bytes = kPageBytes, .pinned = 4});
      ASSERT_GE(plan.kept.size(), before.size());
      ASSERT_TRUE(std::equal(before.begin(), before.end(), plan.kept.begin())) << "round " << round << ", " << slots;
      before = plan.kept;
    }
  }
}

TEST(PlanLookAhead, RefusesADriveWithoutRatesAndAPoolSmallerThanItsPins) {
  const auto step = training(1, 1, 0, 0);
  EXPECT_THROW((void)plan_look_ahead(step, {}, {.slots = 50, .slot_bytes = kPageBytes}), ContractViolation);
  EXPECT_THROW((void)plan_look_ahead(step, kDrive, {.slots = 3, .slot_bytes = kPageBytes}), ContractViolation);
}

}  // namespace
}  // namespace strata::offload
