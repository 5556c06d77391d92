#include "zero/device_slots.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "core/bytes.h"
#include "core/error.h"
#include "core/host_device.h"
#include "support/test_seed.h"

namespace strata::zero {
namespace {

using Visits = std::vector<std::vector<std::size_t>>;
using Sizes = std::vector<std::uint64_t>;
constexpr std::uint64_t kUnit = kPageBytes;

std::map<std::uint64_t, std::size_t> classes_of(const Sizes& sizes, const Visits& visits, std::size_t window) {
  std::map<std::uint64_t, std::size_t> classes;
  for (const SlotClass& c : plan_slot_classes(sizes, visits, window)) classes[c.bytes] = c.count;
  return classes;
}

TEST(PlanSlotClasses, EqualGroupsShareOneSlotPerVisitOfTheWindow) {
  const Sizes sizes(4, 10 * kUnit);
  const Visits visits = {{0}, {1}, {2}, {3}, {2}, {1}, {0}};
  EXPECT_EQ(classes_of(sizes, visits, 1), (std::map<std::uint64_t, std::size_t>{{10 * kUnit, 1}}));
  EXPECT_EQ(classes_of(sizes, visits, 2), (std::map<std::uint64_t, std::size_t>{{10 * kUnit, 2}}));
}

TEST(PlanSlotClasses, AGroupThatBothVisitsNameNeedsOneSlot) {
  EXPECT_EQ(classes_of({5 * kUnit}, {{0}, {0}, {0}}, 2), (std::map<std::uint64_t, std::size_t>{{5 * kUnit, 1}}));
}

TEST(PlanSlotClasses, ALargeGroupDoesNotMakeTheOthersLarge) {
  // An embedding ten times as large as a block, beside a block in one window.
  const Sizes sizes = {100 * kUnit, 10 * kUnit, 10 * kUnit};
  EXPECT_EQ(classes_of(sizes, {{0}, {1}, {2}, {0}}, 2),
            (std::map<std::uint64_t, std::size_t>{{10 * kUnit, 2}, {100 * kUnit, 1}}));
}

TEST(PlanSlotClasses, SizesThatAreNeverNeededTogetherShareASlot) {
  EXPECT_EQ(classes_of({9 * kUnit, 10 * kUnit}, {{0}, {1}}, 1),
            (std::map<std::uint64_t, std::size_t>{{10 * kUnit, 1}}));
}

TEST(PlanSlotClasses, GroupsThatNoVisitNamesGetNothing) {
  EXPECT_EQ(classes_of({9 * kUnit, 10 * kUnit}, {{1}, {}}, 2), (std::map<std::uint64_t, std::size_t>{{10 * kUnit, 1}}));
  EXPECT_TRUE(classes_of({9 * kUnit}, {{}}, 2).empty());
  EXPECT_TRUE(classes_of({9 * kUnit}, {}, 2).empty());
}

TEST(PlanSlotClasses, TotalCountsWholePages) {
  const std::vector<SlotClass> classes = {{100, 2}, {kPageBytes + 1, 3}};
  EXPECT_EQ(total_bytes(classes), 2 * kPageBytes + 6 * kPageBytes);
}

// Bytes of the cheapest way to cut the sizes into consecutive classes, each with as many slots as any window needs.
std::uint64_t cheapest(const Sizes& sizes, const Visits& visits, std::size_t window) {
  const std::set<std::uint64_t> distinct(sizes.begin(), sizes.end());
  const std::vector<std::uint64_t> sorted(distinct.begin(), distinct.end());
  const auto most = [&](std::uint64_t above, std::uint64_t upto) {
    std::size_t result = 0;
    for (std::size_t v = 0; v < visits.size(); ++v) {
      std::set<std::size_t> named;
      for (std::size_t i = v; i < std::min(v + window, visits.size()); ++i) {
        for (const std::size_t g : visits[i]) {
          if (sizes[g] > above && sizes[g] <= upto) named.insert(g);
        }
      }
      result = std::max(result, named.size());
    }
    return result;
  };
  std::optional<std::uint64_t> best;
  for (std::uint32_t cuts = 0; cuts < (1U << (sorted.size() - 1)); ++cuts) {
    std::uint64_t cost = 0;
    std::uint64_t above = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (i + 1 < sorted.size() && (cuts >> i & 1U) == 0) continue;
      cost += sorted[i] * most(above, sorted[i]);
      above = sorted[i];
    }
    best = std::min(best.value_or(cost), cost);
  }
  return *best;
}

struct RandomCase {
  Sizes sizes;
  Visits visits;
};

RandomCase random_case(std::mt19937_64& random) {
  const auto pick = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  RandomCase c;
  for (std::size_t n = pick(1, 6); n > 0; --n) c.sizes.push_back(pick(1, 12) * kUnit);
  for (std::size_t n = pick(1, 7); n > 0; --n) {
    std::set<std::size_t> groups;
    for (std::size_t k = pick(0, 2); k > 0; --k) groups.insert(pick(0, c.sizes.size() - 1));
    c.visits.emplace_back(groups.begin(), groups.end());
  }
  return c;
}

TEST(PlanSlotClasses, NoOtherCutIntoClassesTakesFewerBytes) {
  const std::uint64_t seed = test::test_seed(5);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const RandomCase c = random_case(random);
    for (const std::size_t window : {1, 2}) {
      ASSERT_EQ(total_bytes(plan_slot_classes(c.sizes, c.visits, window)), cheapest(c.sizes, c.visits, window));
    }
  }
}

TEST(DeviceSlots, APlanSufficesForItsVisits) {
  const std::uint64_t seed = test::test_seed(6);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    const RandomCase c = random_case(random);
    HostDevice device(std::uint64_t{16} << 20);
    DeviceSlots slots(device, MemoryTag::Gather, plan_slot_classes(c.sizes, c.visits, 2));
    std::map<std::size_t, DeviceSlots::Lease> held;
    for (std::size_t v = 0; v < c.visits.size(); ++v) {
      std::set<std::size_t> wanted(c.visits[v].begin(), c.visits[v].end());
      if (v + 1 < c.visits.size()) wanted.insert(c.visits[v + 1].begin(), c.visits[v + 1].end());
      for (auto it = held.begin(); it != held.end();) {
        if (wanted.contains(it->first)) {
          ++it;
        } else {
          slots.release(it->second, Event());
          it = held.erase(it);
        }
      }
      for (const std::size_t g : wanted) {
        if (!held.contains(g)) held.emplace(g, slots.acquire(c.sizes[g]));
      }
    }
  }
}

TEST(DeviceSlots, HandsOutTheSlotReleasedFirstWithItsEvent) {
  HostDevice device(1 << 20);
  DeviceSlots slots(device, MemoryTag::Gather, std::vector<SlotClass>{{kUnit, 2}});
  const DeviceSlots::Lease first = slots.acquire(kUnit);
  const DeviceSlots::Lease second = slots.acquire(kUnit - 5);
  EXPECT_TRUE(first.free.ready());
  EXPECT_NE(first.data, second.data);
  EventSource second_use;
  EventSource first_use;
  slots.release(second, second_use.event());
  slots.release(first, first_use.event());
  const DeviceSlots::Lease again = slots.acquire(kUnit);
  EXPECT_EQ(again.data, second.data);
  EXPECT_FALSE(again.free.ready());
  second_use.complete();
  EXPECT_TRUE(again.free.ready());
  first_use.complete();
}

TEST(DeviceSlots, ASmallBufferComesFromTheSmallestClassThatHoldsIt) {
  HostDevice device(1 << 20);
  DeviceSlots slots(device, MemoryTag::Gather, std::vector<SlotClass>{{4 * kUnit, 1}, {kUnit, 1}});
  const DeviceSlots::Lease small = slots.acquire(kUnit);
  const DeviceSlots::Lease large = slots.acquire(3 * kUnit);
  EXPECT_LT(small.slot_class, large.slot_class);
}

TEST(DeviceSlots, RefusesMoreThanThePlanProvides) {
  HostDevice device(1 << 20);
  DeviceSlots slots(device, MemoryTag::Gather, std::vector<SlotClass>{{kUnit, 1}});
  EXPECT_THROW((void)slots.acquire(2 * kUnit), ContractViolation);
  (void)slots.acquire(kUnit);
  EXPECT_THROW((void)slots.acquire(kUnit), ContractViolation);
}

TEST(DeviceSlots, ReservesEverythingAtOnce) {
  HostDevice device(10 * kUnit);
  const std::vector<SlotClass> fits = {{kUnit, 2}, {4 * kUnit, 2}};
  const DeviceSlots slots(device, MemoryTag::Gather, fits);
  EXPECT_EQ(device.budget().used(MemoryTag::Gather), total_bytes(fits));
  EXPECT_THROW(DeviceSlots(device, MemoryTag::Gather, std::vector<SlotClass>{{kUnit, 1}}), OutOfBudget);
}

}  // namespace
}  // namespace strata::zero
