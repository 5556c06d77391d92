#include "core/slot_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

namespace strata {
namespace {

using namespace literals;

class SlotPoolTest : public ::testing::Test {
 protected:
  SlotPool make(std::size_t region_bytes, std::size_t slot_bytes) {
    return SlotPool(allocate_host(budget_, region_bytes, MemoryTag::Staging), slot_bytes);
  }
  Budget budget_{"ram", 16_MiB};
};

TEST_F(SlotPoolTest, CutsWholeSlotsOnly) {
  const SlotPool pool = make(3 * kPageBytes + 100, kPageBytes);

  EXPECT_EQ(pool.slots(), 3U);
  EXPECT_EQ(pool.free_slots(), 3U);
  EXPECT_EQ(pool.slot_bytes(), kPageBytes);
}

TEST_F(SlotPoolTest, SlotsAreDisjointAlignedPartsOfTheRegion) {
  const SlotPool pool = make(4 * kPageBytes, 2 * kPageBytes);

  EXPECT_EQ(pool.slot(0).data(), pool.region().data());
  EXPECT_EQ(pool.slot(1).data(), pool.region().data() + 2 * kPageBytes);
  EXPECT_EQ(pool.slot(1).size(), 2 * kPageBytes);
}

TEST_F(SlotPoolTest, LendsEachSlotOnceAndThenNone) {
  SlotPool pool = make(3 * kPageBytes, kPageBytes);

  std::set<std::size_t> lent;
  while (const auto slot = pool.try_acquire()) lent.insert(*slot);

  EXPECT_EQ(lent, (std::set<std::size_t>{0, 1, 2}));
  EXPECT_EQ(pool.free_slots(), 0U);
}

TEST_F(SlotPoolTest, LendsTheSlotReturnedLast) {
  SlotPool pool = make(4 * kPageBytes, kPageBytes);
  const auto a = pool.try_acquire();
  const auto b = pool.try_acquire();
  pool.release(*b);
  pool.release(*a);

  EXPECT_EQ(pool.try_acquire(), a);
  EXPECT_EQ(pool.try_acquire(), b);
}

TEST_F(SlotPoolTest, RefusesASlotThatIsNotOnLoan) {
  SlotPool pool = make(2 * kPageBytes, kPageBytes);
  const auto slot = pool.try_acquire();
  pool.release(*slot);

  EXPECT_THROW(pool.release(*slot), ContractViolation);
  EXPECT_THROW(pool.release(1), ContractViolation);
  EXPECT_THROW(pool.release(2), ContractViolation);
  EXPECT_EQ(pool.free_slots(), 2U);
}

TEST_F(SlotPoolTest, RefusesASlotThatDoesNotExist) {
  const SlotPool pool = make(2 * kPageBytes, kPageBytes);
  EXPECT_THROW(static_cast<void>(pool.slot(2)), ContractViolation);
}

TEST_F(SlotPoolTest, RefusesSlotsThatAreNotWholePages) {
  EXPECT_THROW(make(kPageBytes, 0), ContractViolation);
  EXPECT_THROW(make(kPageBytes, 512), ContractViolation);
  EXPECT_THROW(make(kPageBytes, kPageBytes + 1), ContractViolation);
}

TEST_F(SlotPoolTest, ARegionSmallerThanASlotHasNone) {
  SlotPool pool = make(kPageBytes, 2 * kPageBytes);
  EXPECT_EQ(pool.try_acquire(), std::nullopt);
}

TEST_F(SlotPoolTest, ASlotHasOneHolderAtATimeUnderSeveralThreads) {
  SlotPool pool = make(3 * kPageBytes, kPageBytes);
  std::vector<std::atomic<int>> holders(pool.slots());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        const auto slot = pool.try_acquire();
        if (!slot) continue;
        EXPECT_EQ(++holders[*slot], 1);
        --holders[*slot];
        pool.release(*slot);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(pool.free_slots(), 3U);
}

}  // namespace
}  // namespace strata
