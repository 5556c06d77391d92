// Random shards, shares, slots, schedules, plans, strays, completion orders and thread counts against a plain map.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "support/shuffling_executor.h"
#include "support/store_rig.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::offload {
namespace {

using test::has_stamp;
using test::ShufflingExecutor;
using test::stamp;
using test::StoreRig;

constexpr int kCases = 60;
constexpr int kAccessesPerThread = 300;

struct Case {
  explicit Case(std::uint64_t seed) : random(seed) {}
  std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  }
  bool chance(int percent) { return pick(0, 99) < static_cast<std::uint64_t>(percent); }
  std::mt19937_64 random;
};

Access any_access(Case& c) {
  return std::array{Access::Read, Access::Write, Access::ReadWrite}[c.pick(0, 2)];
}

// A caller with its own shards: threads that wait for each other's pins would deadlock by themselves.
class Caller {
 public:
  Caller(StoreRig& rig, Executor& late, std::vector<ShardId> shards, std::uint64_t seed)
      : rig_(rig), late_(late), shards_(std::move(shards)), case_(seed) {}

  void initialize() {
    for (const ShardId shard : shards_) {
      for (std::uint32_t p = 0; p < rig_.store.pieces(shard); ++p) {
        const Pin pin = rig_.store.acquire({shard, p}, Access::Write);
        write(pin.wait(), {shard, p});
      }
    }
  }

  // Follows `schedule` with strays in between, holding up to kMinSlots pins at once.
  void follow(const Schedule& schedule, int accesses, std::size_t& at) {
    for (int i = 0; i < accesses; ++i) {
      if (case_.chance(90)) {
        touch(schedule.at(at).piece, schedule.at(at).access);
        ++at;
      } else {
        touch(any_piece(), any_access(case_));
      }
    }
    held_.clear();
  }

  void check_everything() {
    for (const auto& [key, version] : versions_) {
      const PieceId piece{{key.first}, key.second};
      const Pin pin = rig_.store.acquire(piece, Access::Read);
      ASSERT_TRUE(has_stamp(pin.wait(), version)) << "shard " << key.first << " piece " << key.second;
    }
  }

  PieceId any_piece() {
    const ShardId shard = shards_[case_.pick(0, shards_.size() - 1)];
    return {shard, static_cast<std::uint32_t>(case_.pick(0, rig_.store.pieces(shard) - 1))};
  }

 private:
  struct Held {
    PieceId piece;
    Pin pin;
  };

  void touch(PieceId piece, Access access) {
    // A pin that this caller holds may exclude the new one.
    std::erase_if(held_, [&](const Held& held) { return held.piece == piece; });
    while (held_.size() >= ShardStore::kMinSlots || (!held_.empty() && case_.chance(40))) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(case_.pick(0, held_.size() - 1)));
    }
    Pin pin = rig_.store.acquire(piece, access);
    const std::span<std::byte> bytes = pin.wait();
    const std::uint64_t version = versions_.at({piece.shard.index, piece.piece});
    if (reads(access)) {
      ASSERT_TRUE(has_stamp(bytes, version)) << "shard " << piece.shard.index << " piece " << piece.piece;
    }
    if (writes(access)) write(bytes, piece);
    if (case_.chance(25)) {
      auto done = std::make_shared<EventSource>();
      pin.release_after(done->event());
      late_.post([done] { done->complete(); });
    } else if (case_.chance(60)) {
      held_.push_back({piece, std::move(pin)});
    }
  }

  void write(std::span<std::byte> bytes, PieceId piece) {
    const std::uint64_t version = ++next_version_ * 1000 + piece.shard.index;
    stamp(bytes, version);
    versions_[{piece.shard.index, piece.piece}] = version;
  }

  StoreRig& rig_;
  Executor& late_;
  const std::vector<ShardId> shards_;
  Case case_;
  std::uint64_t next_version_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> versions_;  // the oracle
  std::vector<Held> held_;
};

std::shared_ptr<const Schedule> any_schedule(Case& c, Caller& caller) {
  std::vector<ScheduledAccess> accesses;
  for (std::uint64_t n = c.pick(1, 80); n > 0; --n) accesses.push_back({caller.any_piece(), any_access(c)});
  std::optional<std::vector<PieceId>> kept;
  if (c.chance(50)) {
    kept.emplace();
    for (std::uint64_t n = c.pick(0, 10); n > 0; --n) kept->push_back(caller.any_piece());
  }
  return std::make_shared<Schedule>("random", std::move(accesses), kept);
}

test::StoreRigOptions any_options(Case& c, std::size_t threads, Executor& completions) {
  test::StoreRigOptions options;
  options.slots = ShardStore::kMinSlots * threads + (c.chance(50) ? 0 : c.pick(0, 12));
  options.slot_bytes = c.chance(70) ? kPageBytes : 3 * kPageBytes;
  options.look_ahead_bytes = c.chance(25) ? 0 : c.pick(1, 30) * options.slot_bytes;
  options.completions = c.chance(85) ? &completions : nullptr;
  options.memory_bytes = std::uint64_t{8} << 20;
  return options;
}

void run_case(std::uint64_t seed) {
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  const test::Watchdog watchdog("the case of STRATA_TEST_SEED=" + std::to_string(seed));
  Case c(seed);
  ShufflingExecutor completions(seed + 1);
  ShufflingExecutor late(seed + 2);
  const std::size_t threads = c.pick(1, 2);
  std::unique_ptr<EvictionPolicy> policy = std::make_unique<NextUsePolicy>();
  if (c.chance(30)) policy = std::make_unique<LruPolicy>();
  StoreRig rig(any_options(c, threads, completions), std::move(policy));
  std::deque<Caller> callers;
  for (std::size_t t = 0; t < threads; ++t) {
    std::vector<ShardId> shards;
    for (std::uint64_t n = c.pick(1, 4); n > 0; --n) {
      const auto home = std::array{TierKind::Nvme, TierKind::Nvme, TierKind::Nvme, TierKind::Device}[c.pick(0, 3)];
      ShardSpec spec{"shard", ShardKind::OptimState, DType::F32, c.pick(1, 12 * kPageBytes / sizeof(float)), home};
      constexpr std::uint64_t kBlock = kPageBytes / sizeof(float);
      if (home == TierKind::Nvme && c.chance(30)) spec.host_numel = spec.numel / kBlock / 2 * kBlock;
      shards.push_back(rig.store.add(spec));
    }
    callers.emplace_back(rig, late, std::move(shards), seed * 31 + t);
  }
  for (Caller& caller : callers) caller.initialize();
  // Only the first caller follows the schedule of the store; to it the others are strays.
  for (std::uint64_t mode = c.pick(1, 4); mode > 0; --mode) {
    std::vector<std::shared_ptr<const Schedule>> schedules;
    for (Caller& caller : callers) schedules.push_back(any_schedule(c, caller));
    rig.store.set_schedule(c.chance(10) ? nullptr : schedules[0], c.chance(50) ? any_schedule(c, callers[0]) : nullptr);
    std::vector<std::thread> running;
    for (std::size_t t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        std::size_t at = 0;
        callers[t].follow(*schedules[t], kAccessesPerThread, at);
      });
    }
    for (std::thread& thread : running) thread.join();
  }
  for (Caller& caller : callers) caller.check_everything();
  rig.store.drain();
  rig.store.drain_uncached();
  EXPECT_LE(rig.host.peak(), rig.host.limit());
  EXPECT_EQ(rig.host.used(MemoryTag::Staging), rig.slots.slots() * rig.slots.slot_bytes()) << "pages are slots only";
}

TEST(ShardStoreProperty, NoByteIsLostAndEveryAccessEnds) {
  const std::uint64_t first = test::test_seed(20250101);
  std::cout << "first seed " << first << '\n';
  const int cases = std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : kCases;
  for (int i = 0; i < cases && !::testing::Test::HasFatalFailure(); ++i)
    run_case(first + static_cast<std::uint64_t>(i));
}

// As above with failing requests: every access ends with the failure or succeeds, and the store can be destroyed.
TEST(ShardStoreProperty, AFailureAtAnyPointEndsEveryAccess) {
  const std::uint64_t first = test::test_seed(777);
  const int cases = std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : kCases;
  int failures = 0;
  for (int i = 0; i < cases; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    const test::Watchdog watchdog("the failing case of STRATA_TEST_SEED=" + std::to_string(seed));
    Case c(seed);
    ShufflingExecutor completions(seed + 1);
    ShufflingExecutor late(seed + 2);
    StoreRig rig(any_options(c, 1, completions));
    Caller caller(rig, late, {rig.add(20 * kPageBytes / sizeof(float))}, seed);
    caller.initialize();
    const auto schedule = any_schedule(c, caller);
    rig.store.set_schedule(schedule);
    c.chance(50) ? rig.blobs.fail_read(c.pick(0, 40)) : rig.blobs.fail_write(c.pick(0, 40));
    std::size_t at = 0;
    try {
      caller.follow(*schedule, kAccessesPerThread, at);
      rig.store.drain();
    } catch (const IoError& error) {
      EXPECT_EQ(error.failure().hint, "Injected by the test.");
      ++failures;
    }
  }
  // Where nothing failed, the request that was to fail never came.
  EXPECT_GE(failures, cases / 4);
}

// Callers blocked for a slot are served in the order in which they asked, whatever comes free in whatever portions,
// while the prefetcher would like the slots as well.
TEST(ShardStoreProperty, BlockedCallersGetSlotsFirstComeFirstServed) {
  const std::uint64_t first = test::test_seed(4711);
  std::cout << "first seed " << first << '\n';
  const int cases = std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : kCases;
  for (int i = 0; i < cases; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    const test::Watchdog watchdog("the queue of STRATA_TEST_SEED=" + std::to_string(seed));
    Case c(seed);
    ShufflingExecutor completions(seed + 1);
    test::StoreRigOptions options = any_options(c, 1, completions);
    StoreRig rig(options);
    const std::size_t slots = rig.slots.slots();
    const std::size_t callers = c.pick(1, 7);
    const auto pages = static_cast<std::uint32_t>(slots + callers);
    const ShardId shard = rig.add(pages * rig.slots.slot_bytes() / sizeof(float));
    std::vector<ScheduledAccess> accesses;
    for (std::uint32_t p = 0; p < pages; ++p) accesses.push_back({{shard, p}, Access::Read});
    rig.store.set_schedule(std::make_shared<Schedule>("random", std::move(accesses)));
    std::vector<Pin> held;
    for (std::uint32_t p = 0; p < slots; ++p) held.push_back(rig.store.acquire({shard, p}, any_access(c)));
    for (const Pin& pin : held) (void)pin.wait();

    std::vector<std::atomic<bool>> served(callers);
    std::vector<Pin> taken(callers);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < callers; ++t) {
      const Access access = any_access(c);
      threads.emplace_back([&, t, access] {
        taken[t] = rig.store.acquire({shard, static_cast<std::uint32_t>(slots + t)}, access);
        served[t] = true;
      });
      while (rig.store.stats().waiting <= t) std::this_thread::yield();
    }
    for (std::size_t done = 0; done < callers;) {
      const std::size_t portion = std::min<std::size_t>(c.pick(1, 3), std::min(callers - done, held.size()));
      for (std::size_t n = 0; n < portion; ++n) {
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(c.pick(0, held.size() - 1)));
      }
      done += portion;
      const auto count = [&] { return static_cast<std::size_t>(std::count(served.begin(), served.end(), true)); };
      while (count() < done) std::this_thread::yield();
      for (std::size_t t = 0; t < callers; ++t) EXPECT_EQ(served[t], t < done) << "caller " << t << " of " << callers;
      // A caller that is served gives its slot up only at the end, so that each portion serves as many.
      if (held.empty()) break;
    }
    held.clear();
    for (std::size_t t = 0; t < callers; ++t) {
      while (!served[t]) {
        for (std::size_t u = 0; u < callers; ++u) {
          if (served[u]) taken[u].release();
        }
        std::this_thread::yield();
      }
    }
    for (std::thread& thread : threads) thread.join();
    taken.clear();
    rig.store.drain();
  }
}

// More threads than the pool has room for at once, each with one pin at a time: nobody starves.
TEST(ShardStoreProperty, NoCallerStarvesWhileOthersKeepAsking) {
  const std::uint64_t seed = test::test_seed(99);
  std::cout << "seed " << seed << '\n';
  const test::Watchdog watchdog("the crowd of STRATA_TEST_SEED=" + std::to_string(seed));
  ShufflingExecutor completions(seed);
  StoreRig rig({.slots = ShardStore::kMinSlots, .look_ahead_bytes = 3 * kPageBytes, .completions = &completions});
  constexpr std::uint32_t kPages = 40;
  const ShardId shard = rig.add(kPages * kPageBytes / sizeof(float));
  std::vector<ScheduledAccess> accesses;
  for (std::uint32_t p = 0; p < kPages; ++p) accesses.push_back({{shard, p}, Access::ReadWrite});
  rig.store.set_schedule(std::make_shared<Schedule>("crowd", std::move(accesses)));
  // The greedy ones ask until the modest ones, who ask a few times only, have all been served.
  std::atomic<int> modest_left{3};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Case c(seed + t);
      const bool modest = t < 3;
      for (int n = 0; modest ? n < 40 : modest_left > 0; ++n) {
        const auto page = static_cast<std::uint32_t>(t + 6 * c.pick(0, 5));
        (void)rig.store.acquire({shard, page}, any_access(c)).wait();
      }
      if (modest) --modest_left;
    });
  }
  for (std::thread& thread : threads) thread.join();
  rig.store.drain();
  EXPECT_EQ(modest_left, 0);
  EXPECT_EQ(rig.store.stats().waiting, 0U);
}

}  // namespace
}  // namespace strata::offload
