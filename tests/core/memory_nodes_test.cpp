#include "core/memory_nodes.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "core/budget.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/log.h"
#include "support/proc.h"

namespace strata {
namespace {

// A small region, which map_pages() leaves where it is.
class MemoryNodesTest : public testing::Test {
 protected:
  // What MemoryNodes sees from now on. `binding` is taken for the machine's own, so that calls reach the kernel.
  static void pretend(const char* topology, const char* this_system = "0") {
    ::setenv("HWLOC_SYNTHETIC", topology, 1);
    ::setenv("HWLOC_THISSYSTEM", this_system, 1);
  }

  void TearDown() override {
    ::unsetenv("HWLOC_SYNTHETIC");
    ::unsetenv("HWLOC_THISSYSTEM");
  }

  Budget budget_{"ram", 1 << 20};
  Buffer region_ = allocate_host(budget_, 64 * kPageBytes, MemoryTag::Staging);
};

TEST_F(MemoryNodesTest, OfThisMachineAreAtLeastOne) {
  EXPECT_GE(MemoryNodes().size(), 1U);
}

TEST_F(MemoryNodesTest, AreCounted) {
  pretend("numa:4 core:2 pu:1");
  EXPECT_EQ(MemoryNodes().size(), 4U);
}

TEST_F(MemoryNodesTest, WithoutASplitAreOne) {
  pretend("core:2 pu:1");
  EXPECT_EQ(MemoryNodes().size(), 1U);
}

TEST_F(MemoryNodesTest, OfSpecialMemoryBesideTheSameCpusDoNotCount) {
  pretend("pack:2 [numa(memory=64GB)] [numa(memory=8GB)] core:2 pu:1");
  EXPECT_EQ(MemoryNodes().size(), 2U);
}

// CPUs that the calling thread may run on.
std::set<int> cpus_of_this_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::set<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
  }
  return cpus;
}

TEST_F(MemoryNodesTest, DivideThreadsThatShareWorkAmongThem) {
  const std::set<int> all = cpus_of_this_thread();
  if (!all.contains(0) || !all.contains(1)) GTEST_SKIP() << "this test binds to CPUs 0 and 1";
  pretend("numa:2 core:1 pu:1", "1");
  const MemoryNodes nodes;
  for (std::size_t i = 0; i < 4; ++i) {
    std::thread([&] {
      nodes.bind_thread(i, 4);
      EXPECT_EQ(cpus_of_this_thread(), (std::set<int>{i < 2 ? 0 : 1})) << i;
    }).join();
  }
  EXPECT_EQ(cpus_of_this_thread(), all) << "others stay as they are";
}

// As a rank is that shares the machine with others.
TEST_F(MemoryNodesTest, KeepAThreadOnTheCpusThatItHas) {
  const std::set<int> all = cpus_of_this_thread();
  if (!all.contains(0) || !all.contains(1)) GTEST_SKIP() << "this test binds to CPUs 0 and 1";
  pretend("numa:2 core:1 pu:1", "1");
  const MemoryNodes nodes;
  for (std::size_t i = 0; i < 2; ++i) {
    std::thread([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(1, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      nodes.bind_thread(i, 2);
      EXPECT_EQ(cpus_of_this_thread(), (std::set<int>{1})) << i;
    }).join();
  }
}

TEST_F(MemoryNodesTest, BindNobodyWhereThereIsOne) {
  pretend("core:2 pu:1", "1");
  const std::set<int> all = cpus_of_this_thread();
  std::thread([&] {
    MemoryNodes().bind_thread(0, 2);
    EXPECT_EQ(cpus_of_this_thread(), all);
  }).join();
}

TEST_F(MemoryNodesTest, LeaveOneNodeAlone) {
  pretend("core:2 pu:1", "1");
  MemoryNodes().spread(region_.span());

  const std::string policy = test::numa_policy_of(region_.data());
  if (policy.empty()) GTEST_SKIP() << "no /proc/self/numa_maps here";
  EXPECT_NE(policy.find(" default"), std::string::npos) << policy;
}

TEST_F(MemoryNodesTest, TakeTurnsForThePagesOfARegion) {
  pretend("numa:2 core:1 pu:1", "1");
  MemoryNodes().spread(region_.span());

  const std::string policy = test::numa_policy_of(region_.data());
  if (policy.empty()) GTEST_SKIP() << "no /proc/self/numa_maps here";
  // The kernel leaves out the nodes that this machine does not have.
  EXPECT_NE(policy.find(" interleave:0"), std::string::npos) << policy;
}

TEST_F(MemoryNodesTest, OneMayBePreferredAndNeedNotHaveRoom) {
  pretend("numa:2 core:1 pu:1", "1");
  MemoryNodes().prefer(region_.span(), 0);

  const std::string policy = test::numa_policy_of(region_.data());
  if (policy.empty()) GTEST_SKIP() << "no /proc/self/numa_maps here";
  EXPECT_NE(policy.find(" prefer"), std::string::npos) << policy;
}

TEST_F(MemoryNodesTest, ThatAreNotThereAreNotPreferred) {
  pretend("numa:2 core:1 pu:1", "1");
  log::set_level(log::Level::Debug);
  testing::internal::CaptureStderr();

  MemoryNodes().prefer(region_.span(), 7);

  log::set_level(log::Level::Info);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the kernel was not asked";
}

TEST_F(MemoryNodesTest, ThatTheKernelRefusesCostOneDebugLine) {
  pretend("numa:2(indexes=0,100000) core:1 pu:1", "1");
  const MemoryNodes nodes;
  log::set_level(log::Level::Debug);
  testing::internal::CaptureStderr();

  nodes.spread(region_.span());
  nodes.spread(region_.span());

  const std::string lines = testing::internal::GetCapturedStderr();
  log::set_level(log::Level::Info);
  const std::size_t said = lines.find("refuses to spread 256.00 KiB over 2 NUMA nodes");
  EXPECT_NE(said, std::string::npos) << lines;
  EXPECT_EQ(lines.find("refuses", said + 8), std::string::npos) << lines;
  region_.span()[0] = std::byte{1};  // the memory is there all the same
}

}  // namespace
}  // namespace strata
