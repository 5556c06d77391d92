#include "nvme/spare_chunks.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

#include "core/bytes.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

using namespace literals;
constexpr std::uint64_t kChunk = 64_KiB;

// Repeats `done` until it is true; the limit is a guard against hangs.
template <typename Done>
bool eventually(const Done& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

class SpareChunksTest : public testing::Test {
 protected:
  std::vector<SwapFile*> files() { return {&first_, &second_}; }

  test::TempDir directory_;
  SwapFile first_{directory_.path(), IoMode::Direct};
  SwapFile second_{directory_.path(), IoMode::Direct};
};

TEST_F(SpareChunksTest, ExchangesPlacesAndPaysForOneMoreOnlyMeanwhile) {
  Budget budget("nvme", 2 * kChunk);
  const Reservation own = budget.reserve(kChunk, MemoryTag::OptimState);
  SpareChunks spares(files(), kChunk, budget);
  Place place{0, first_.take(kChunk, "blob")};
  for (const std::size_t to : {1u, 0u, 1u, 0u}) {
    std::optional<Place> moved;
    ASSERT_TRUE(eventually([&] { return (moved = spares.exchange(place, to)).has_value(); }));
    EXPECT_EQ(moved->path, to);
    place = *moved;
  }
  EXPECT_TRUE(eventually([&] { return budget.used() == kChunk; })) << "the last place that was left is still paid for";
  EXPECT_EQ(budget.peak(), 2 * kChunk);
}

TEST_F(SpareChunksTest, ExchangesNothingWhenTheBudgetIsFull) {
  Budget budget("nvme", kChunk + kChunk - 1);
  const Reservation own = budget.reserve(kChunk, MemoryTag::OptimState);
  SpareChunks spares(files(), kChunk, budget);
  const Place place{0, first_.take(kChunk, "blob")};
  for (unsigned i = 0; i < 10 * SpareChunks::kRest; ++i) ASSERT_FALSE(spares.exchange(place, 1).has_value());
  EXPECT_EQ(budget.peak(), kChunk);
}

TEST_F(SpareChunksTest, ExchangesNothingWhenTheOtherFileSystemIsFull) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=32k");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  SwapFile full(mount.path(), IoMode::Direct);
  Budget budget("nvme", 1_GiB);
  SpareChunks spares({&first_, &full}, kChunk, budget);
  const Place place{0, first_.take(kChunk, "blob")};
  for (unsigned i = 0; i < 10 * SpareChunks::kRest; ++i) ASSERT_FALSE(spares.exchange(place, 1).has_value());
  EXPECT_TRUE(eventually([&] { return budget.used() == 0; }));
}

TEST_F(SpareChunksTest, KeepsAPlaceWhoseSpaceCannotBeGivenBackForTheNextOne) {
  const test::SmallMount mount = test::SmallMount::memory("ramfs", "");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  SwapFile stubborn(mount.path(), IoMode::Direct);
  Budget budget("nvme", 1_GiB);
  SpareChunks spares({&first_, &stubborn}, kChunk, budget);
  const Place before{1, stubborn.take(kChunk, "blob")};
  stubborn.take(kChunk, "another one behind it, so that the file cannot just become shorter");
  std::optional<Place> away;
  ASSERT_TRUE(eventually([&] { return (away = spares.exchange(before, 0)).has_value(); }));
  std::optional<Place> back;
  ASSERT_TRUE(eventually([&] { return (back = spares.exchange(*away, 1)).has_value(); }));
  EXPECT_EQ(back->path, 1u);
}

TEST_F(SpareChunksTest, MakesNothingReadyOnceStopped) {
  Budget budget("nvme", 1_GiB);
  SpareChunks spares(files(), kChunk, budget);
  const Place place{0, first_.take(kChunk, "blob")};
  spares.stop();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(spares.exchange(place, 1).has_value());
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace strata::nvme
