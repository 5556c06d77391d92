#include "core/cpu_share.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "core/memory_nodes.h"
#include "core/parallel.h"
#include "support/plain_math.h"

namespace strata {
namespace {

class CpuShareTest : public testing::Test {
 protected:
  // What hwloc sees from now on.
  static void pretend(const char* topology) {
    ::setenv("HWLOC_SYNTHETIC", topology, 1);
    ::setenv("HWLOC_THISSYSTEM", "0", 1);
  }
  void TearDown() override {
    ::unsetenv("HWLOC_SYNTHETIC");
    ::unsetenv("HWLOC_THISSYSTEM");
  }
};

CpuList first_cpus(int n) {
  CpuList cpus;
  for (int cpu = 0; cpu < n; ++cpu) cpus.push_back(cpu);
  return cpus;
}

TEST_F(CpuShareTest, CutsThePackagesOfTheTopologyInOrder) {
  pretend("pack:2 core:2 pu:1");
  EXPECT_EQ(cpu_share(first_cpus(4), 0, 2), (CpuList{0, 1}));
  EXPECT_EQ(cpu_share(first_cpus(4), 1, 2), (CpuList{2, 3}));
}

// As Linux numbers them on most machines: first one thread of each core, then the others; and cores of two packages in
// turn.
TEST_F(CpuShareTest, FollowsTheTopologyAndNotTheNumbers) {
  pretend("pack:2 core:2 pu:2(indexes=0,4,2,6,1,5,3,7)");
  EXPECT_EQ(cores_in_order(first_cpus(8)), (std::vector<CpuList>{{0, 4}, {2, 6}, {1, 5}, {3, 7}}));
  EXPECT_EQ(cpu_share(first_cpus(8), 0, 2), (CpuList{0, 2, 4, 6}));
  EXPECT_EQ(cpu_share(first_cpus(8), 1, 2), (CpuList{1, 3, 5, 7}));
}

TEST_F(CpuShareTest, KeepsTheThreadsOfACoreTogether) {
  pretend("core:3 pu:2");
  EXPECT_EQ(cpu_share(first_cpus(6), 0, 2), (CpuList{0, 1}));
  EXPECT_EQ(cpu_share(first_cpus(6), 1, 2), (CpuList{2, 3, 4, 5}));
}

TEST_F(CpuShareTest, DividesCoresWhereThereAreFewerThanRanks) {
  pretend("core:2 pu:2");
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(cpu_share(first_cpus(4), rank, 4), (CpuList{static_cast<int>(rank)}));
  }
}

TEST_F(CpuShareTest, GivesEveryRankACpuWhereThereAreFewerCpusThanRanks) {
  pretend("core:2 pu:1");
  EXPECT_EQ(cpu_share(first_cpus(2), 0, 3), (CpuList{0}));
  EXPECT_EQ(cpu_share(first_cpus(2), 1, 3), (CpuList{0}));
  EXPECT_EQ(cpu_share(first_cpus(2), 2, 3), (CpuList{1}));
}

TEST_F(CpuShareTest, TakesOnlyCpusThatItWasGiven) {
  pretend("pack:2 core:4 pu:1");
  const CpuList some{1, 2, 3, 6};
  EXPECT_EQ(cpu_share(some, 0, 2), (CpuList{1, 2}));
  EXPECT_EQ(cpu_share(some, 1, 2), (CpuList{3, 6}));
}

TEST_F(CpuShareTest, TakesCpusThatHwlocDoesNotKnow) {
  pretend("core:2 pu:1");
  EXPECT_EQ(cpu_share({0, 1, 98, 99}, 1, 2), (CpuList{98, 99}));
}

TEST_F(CpuShareTest, IsNoLargerThanItsPartOfTheGrant) {
  pretend("core:8 pu:1");
  EXPECT_EQ(cpu_share(first_cpus(8), 1, 2, 4), (CpuList{4, 5}));
  EXPECT_EQ(cpu_share(first_cpus(8), 1, 2, 1), (CpuList{4}));
  EXPECT_EQ(cpu_share(first_cpus(8), 1, 2, 8).size(), 4U);
}

// Whatever the counts: together they are all CPUs, and none is given twice where there are enough.
TEST_F(CpuShareTest, CoversEverythingOnce) {
  pretend("pack:2 numa:2 core:3 pu:2");
  for (int cpus = 1; cpus <= 24; ++cpus) {
    for (std::size_t ranks = 1; ranks <= 26; ++ranks) {
      std::vector<int> taken(static_cast<std::size_t>(cpus));
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const CpuList share = cpu_share(first_cpus(cpus), rank, ranks);
        ASSERT_FALSE(share.empty()) << cpus << " CPUs, rank " << rank << " of " << ranks;
        for (const int cpu : share) ++taken.at(static_cast<std::size_t>(cpu));
      }
      for (int cpu = 0; cpu < cpus; ++cpu) {
        const int times = taken[static_cast<std::size_t>(cpu)];
        EXPECT_GE(times, 1) << "CPU " << cpu << " of " << cpus << ", " << ranks << " ranks";
        if (ranks <= static_cast<std::size_t>(cpus)) {
          EXPECT_EQ(times, 1) << "CPU " << cpu << " of " << cpus << ", " << ranks << " ranks";
        }
      }
    }
  }
}

TEST_F(CpuShareTest, RefusesARankThatIsNone) {
  EXPECT_THROW(cpu_share({0}, 2, 2), ContractViolation);
  EXPECT_THROW(cpu_share({}, 0, 1), ContractViolation);
}

// The shares that ranks agree on when rank r may run on masks[r]; ranks are threads here, and masks belong to threads.
std::vector<CpuList> shares_of_ranks(const std::vector<CpuList>& masks) {
  test::PlainMath math;
  auto ranks = comm::make_thread_ranks(masks.size(), math);
  std::vector<CpuList> shares(masks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      for (const int cpu : masks[rank]) CPU_SET(static_cast<std::size_t>(cpu), &mask);
      EXPECT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
      shares[rank] = cpu_share(*ranks[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return shares;
}

TEST(CpuShareOfRanks, DividesCpusThatAllMayUse) {
  const CpuList all = allowed_cpus();
  if (all.size() < 2) GTEST_SKIP() << "this test needs two CPUs";
  const std::vector<CpuList> shares = shares_of_ranks({all, all});
  EXPECT_EQ(shares[0], cpu_share(all, 0, 2, usable_cpus()));
  EXPECT_EQ(shares[1], cpu_share(all, 1, 2, usable_cpus()));
}

TEST(CpuShareOfRanks, LeavesCpusToARankThatWasBoundToThem) {
  const CpuList all = allowed_cpus();
  if (all.size() < 2) GTEST_SKIP() << "this test needs two CPUs";
  const CpuList one{all[0]}, other{all[1]};
  EXPECT_EQ(shares_of_ranks({one, other}), (std::vector<CpuList>{one, other}));
}

TEST(CpuShareOfRanks, IsNotFromOmpNumThreads) {
  const CpuList all = allowed_cpus();
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const std::vector<CpuList> shares = shares_of_ranks({all});
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(shares[0], all);
}

TEST(BindProcess, BindsThreadsThatAreThereAndThoseThatCome) {
  const CpuList all = allowed_cpus();
  if (all.size() < 2) GTEST_SKIP() << "this test needs two CPUs";
  std::atomic<bool> bound{false};
  CpuList of_older_thread, of_younger_thread;
  std::thread older([&] {
    bound.wait(false);
    of_older_thread = allowed_cpus();
  });

  bind_process({all[1]});
  bound = true;
  bound.notify_all();
  older.join();
  std::thread([&] { of_younger_thread = allowed_cpus(); }).join();
  const CpuList of_this_thread = allowed_cpus();
  const std::size_t usable = usable_cpus();
  bind_process(all);

  EXPECT_EQ(of_older_thread, (CpuList{all[1]}));
  EXPECT_EQ(of_younger_thread, (CpuList{all[1]}));
  EXPECT_EQ(of_this_thread, (CpuList{all[1]}));
  EXPECT_EQ(usable, 1U);
  EXPECT_EQ(allowed_cpus(), all);
}

}  // namespace
}  // namespace strata
