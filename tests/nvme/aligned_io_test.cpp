#include "nvme/aligned_io.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::nvme {
namespace {

TEST(BlockLocks, RunsWaitersOneAtATimeInTheirOrder) {
  BlockLocks locks;
  std::vector<int> ran;
  for (const int i : {1, 2, 3}) locks.acquire(7, [&ran, i] { ran.push_back(i); });
  EXPECT_EQ(ran, (std::vector<int>{1}));
  locks.release(7);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  locks.release(7);
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TEST(BlockLocks, FreesABlockThatNobodyWaitsFor) {
  BlockLocks locks;
  int ran = 0;
  locks.acquire(7, [&ran] { ++ran; });
  locks.release(7);
  locks.acquire(7, [&ran] { ++ran; });
  EXPECT_EQ(ran, 2);
}

TEST(BlockLocks, KeepsBlocksIndependent) {
  BlockLocks locks;
  int ran = 0;
  locks.acquire(7, [&ran] { ++ran; });
  locks.acquire(8, [&ran] { ++ran; });
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace strata::nvme
