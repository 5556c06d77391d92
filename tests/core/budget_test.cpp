#include "core/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

namespace strata {
namespace {

using namespace literals;
using ::testing::HasSubstr;

TEST(Budget, GrantsUpToTheLimitExactly) {
  Budget budget("ram", 100);

  const auto most = budget.try_reserve(99, MemoryTag::Param);
  const auto last = budget.try_reserve(1, MemoryTag::Grad);

  EXPECT_TRUE(most && last);
  EXPECT_EQ(budget.used(), 100U);
  EXPECT_FALSE(budget.try_reserve(1, MemoryTag::Grad).has_value());
}

TEST(Budget, ARefusalChangesNothing) {
  Budget budget("ram", 100);
  const Reservation held = budget.reserve(60, MemoryTag::Param);

  EXPECT_FALSE(budget.try_reserve(41, MemoryTag::Grad).has_value());

  EXPECT_EQ(budget.used(), 60U);
  EXPECT_EQ(budget.peak(), 60U);
  EXPECT_EQ(budget.peak(MemoryTag::Grad), 0U);
}

TEST(Budget, AnAbsurdSizeDoesNotWrapAround) {
  Budget budget("ram", 100);
  const Reservation held = budget.reserve(60, MemoryTag::Param);

  EXPECT_FALSE(budget.try_reserve(std::numeric_limits<std::uint64_t>::max() - 10, MemoryTag::Grad).has_value());
}

TEST(Budget, ZeroBytesAlwaysFit) {
  Budget budget("ram", 0);
  EXPECT_TRUE(budget.try_reserve(0, MemoryTag::Param).has_value());
}

TEST(Budget, ReserveThrowsWithTheBytes) {
  Budget budget("ram", 100);
  const Reservation held = budget.reserve(60, MemoryTag::Param);

  try {
    budget.reserve(50, MemoryTag::Grad);
    FAIL();
  } catch (const OutOfBudget& error) {
    EXPECT_EQ(error.need_bytes(), 50U);
    EXPECT_EQ(error.have_bytes(), 40U);
  }
}

TEST(Budget, TheRefusalNamesTheTierTheNumbersAndTheHoldersLargestFirst) {
  Budget budget("pinned RAM", 100_MiB);
  const Reservation small = budget.reserve(1_MiB, MemoryTag::Param);
  const Reservation large = budget.reserve(64_MiB, MemoryTag::OptimState);

  try {
    budget.reserve(50_MiB, MemoryTag::Gather);
    FAIL();
  } catch (const OutOfBudget& error) {
    EXPECT_THAT(error.what(), HasSubstr("pinned RAM: 50.00 MiB for Gather"));
    EXPECT_THAT(error.what(), HasSubstr("65.00 MiB of 100.00 MiB used, 35.00 MiB free"));
    EXPECT_THAT(error.what(), HasSubstr("OptimState 64.00 MiB, Param 1.00 MiB"));
  }
}

TEST(Budget, CountsUseAndPeakPerTag) {
  Budget budget("ram", 1000);
  Reservation param = budget.reserve(300, MemoryTag::Param);
  { const Reservation more = budget.reserve(100, MemoryTag::Param); }
  const Reservation grad = budget.reserve(50, MemoryTag::Grad);

  EXPECT_EQ(budget.used(MemoryTag::Param), 300U);
  EXPECT_EQ(budget.peak(MemoryTag::Param), 400U);
  EXPECT_EQ(budget.used(MemoryTag::Grad), 50U);
  EXPECT_EQ(budget.used(), 350U);
  EXPECT_EQ(budget.peak(), 400U);
}

TEST(Budget, EveryTagHasItsOwnName) {
  EXPECT_EQ(name_of(MemoryTag::Param), "Param");
  EXPECT_EQ(name_of(MemoryTag::Grad), "Grad");
  EXPECT_EQ(name_of(MemoryTag::OptimState), "OptimState");
  EXPECT_EQ(name_of(MemoryTag::Gather), "Gather");
  EXPECT_EQ(name_of(MemoryTag::Activation), "Activation");
  EXPECT_EQ(name_of(MemoryTag::Staging), "Staging");
}

TEST(Reservation, ReturnsItsBytesWhenDestroyed) {
  Budget budget("ram", 100);
  {
    const Reservation held = budget.reserve(60, MemoryTag::Param);
    EXPECT_EQ(held.bytes(), 60U);
  }
  EXPECT_EQ(budget.used(), 0U);
  EXPECT_EQ(budget.used(MemoryTag::Param), 0U);
}

TEST(Reservation, ReleaseReturnsTheBytesOnce) {
  Budget budget("ram", 100);
  const Reservation other = budget.reserve(10, MemoryTag::Param);
  Reservation held = budget.reserve(60, MemoryTag::Param);

  held.release();
  held.release();

  EXPECT_EQ(held.bytes(), 0U);
  EXPECT_EQ(budget.used(), 10U);
}

TEST(Reservation, MovingMovesTheBytes) {
  Budget budget("ram", 100);
  Reservation first = budget.reserve(60, MemoryTag::Param);
  Reservation second(std::move(first));

  EXPECT_EQ(second.bytes(), 60U);
  EXPECT_EQ(first.bytes(), 0U);
  first.release();
  EXPECT_EQ(budget.used(), 60U);
}

TEST(Reservation, MoveAssignmentReturnsWhatTheTargetHeld) {
  Budget budget("ram", 100);
  Reservation target = budget.reserve(10, MemoryTag::Param);
  target = budget.reserve(20, MemoryTag::Grad);

  EXPECT_EQ(budget.used(), 20U);
  EXPECT_EQ(budget.used(MemoryTag::Param), 0U);
}

TEST(Reservation, MoveAssignmentToItselfKeepsTheBytes) {
  Budget budget("ram", 100);
  Reservation held = budget.reserve(10, MemoryTag::Param);
  Reservation& alias = held;
  held = std::move(alias);

  EXPECT_EQ(held.bytes(), 10U);
  EXPECT_EQ(budget.used(), 10U);
}

TEST(Budget, NeverExceedsTheLimitUnderSeveralThreads) {
  constexpr std::uint64_t kLimit = 1000;
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Budget budget("ram", kLimit);
  // Counted up after a grant and down before a return, so it never exceeds what the budget has granted.
  std::atomic<std::uint64_t> granted{0};
  std::atomic<std::uint64_t> refusals{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(kSeed + t);
      std::vector<Reservation> held;
      for (int i = 0; i < 5000; ++i) {
        const std::uint64_t bytes = random() % 400;
        if (auto reservation = budget.try_reserve(bytes, static_cast<MemoryTag>(random() % kMemoryTags))) {
          EXPECT_LE(granted += bytes, kLimit);
          held.push_back(std::move(*reservation));
        } else {
          ++refusals;
        }
        EXPECT_LE(budget.used(), kLimit);
        if (held.size() > 2 || random() % 3 == 0) {
          for (const Reservation& each : held) granted -= each.bytes();
          held.clear();
        }
      }
      for (const Reservation& each : held) granted -= each.bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_LE(budget.peak(), kLimit);
  EXPECT_GT(refusals, 0U) << "the limit was never reached, so this test showed nothing";
  EXPECT_EQ(budget.used(), 0U);
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) EXPECT_EQ(budget.used(static_cast<MemoryTag>(tag)), 0U);
}

}  // namespace
}  // namespace strata
