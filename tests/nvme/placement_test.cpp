#include "nvme/placement.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "core/bytes.h"
#include "core/error.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

using namespace literals;
constexpr std::uint64_t kChunk = 64_KiB;

std::vector<std::size_t> chunks_by_path(const std::vector<Place>& places, std::size_t paths) {
  std::vector<std::size_t> count(paths, 0);
  for (const Place& place : places) ++count[place.path];
  return count;
}

TEST(Placement, PutsTheChunksOfAPathOneBehindTheOther) {
  test::TempDir directory;
  SwapFile first(directory.path(), IoMode::Direct);
  SwapFile second(directory.path(), IoMode::Direct);
  const std::vector<SwapFile*> files{&first, &second};
  first.take(4_KiB, "earlier");
  const std::vector<std::uint64_t> sizes{kChunk, kChunk, kChunk, kChunk, 4_KiB};
  std::vector<std::uint64_t> next{4_KiB, 0};
  const std::vector<Place> places = take_places(files, Striping(2, kChunk), sizes, "blob");
  ASSERT_EQ(places.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(places[i].offset, next[places[i].path]) << i;
    next[places[i].path] += sizes[i];
  }
  EXPECT_EQ(chunks_by_path({places.begin(), places.begin() + 4}, 2), (std::vector<std::size_t>{2, 2}));
}

TEST(Placement, GivesWhatDoesNotFitOnOnePathToTheOthers) {
  const test::SmallMount small = test::SmallMount::memory("tmpfs", "size=1m");
  if (!small.mounted()) GTEST_SKIP() << small.reason();
  test::TempDir directory;
  SwapFile first(small.path(), IoMode::Direct);
  SwapFile second(directory.path(), IoMode::Direct);
  const std::vector<SwapFile*> files{&first, &second};
  const std::vector<std::uint64_t> sizes(64, kChunk);
  const std::vector<std::size_t> chunks = chunks_by_path(take_places(files, Striping(2, kChunk), sizes, "blob"), 2);
  EXPECT_GE(chunks[0], 8u);
  EXPECT_LE(chunks[0], 16u);
  EXPECT_EQ(chunks[0] + chunks[1], 64u);
}

// Both say that all of it is free, so the second finds the disk full when it is too late to deal again at leisure.
TEST(Placement, FindsItsWayWhenTwoPathsShareAFileSystem) {
  const test::SmallMount shared = test::SmallMount::memory("tmpfs", "size=1m");
  if (!shared.mounted()) GTEST_SKIP() << shared.reason();
  test::TempDir directory;
  SwapFile first(shared.path(), IoMode::Direct);
  SwapFile second(shared.path(), IoMode::Direct);
  SwapFile third(directory.path(), IoMode::Direct);
  const std::vector<SwapFile*> files{&first, &second, &third};
  const std::vector<std::uint64_t> sizes(45, kChunk);
  const std::vector<std::size_t> chunks = chunks_by_path(take_places(files, Striping(3, kChunk), sizes, "blob"), 3);
  EXPECT_LE(chunks[0] + chunks[1], 16u);
  EXPECT_EQ(chunks[0] + chunks[1] + chunks[2], 45u);
}

TEST(Placement, SaysNeedAndHaveOfEveryPathAndInTotalAndTakesNothing) {
  const test::SmallMount a = test::SmallMount::memory("tmpfs", "size=1m");
  const test::SmallMount b = test::SmallMount::memory("tmpfs", "size=2m");
  if (!a.mounted() || !b.mounted()) GTEST_SKIP() << a.reason();
  SwapFile first(a.path(), IoMode::Direct);
  SwapFile second(b.path(), IoMode::Direct);
  const std::vector<SwapFile*> files{&first, &second};
  const std::vector<std::uint64_t> sizes(64, kChunk);
  try {
    take_places(files, Striping(2, kChunk), sizes, "weights");
    FAIL() << "4 MiB were taken of 3";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOSPC);
    const std::string message = error.what();
    for (const std::string& part :
         {std::string("weights"), std::string("needs 4.00 MiB"), "1.00 MiB free in " + a.path().string(),
          "2.00 MiB free in " + b.path().string(), std::string("3.00 MiB in total")}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is missing in: " << message;
    }
  }
}

}  // namespace
}  // namespace strata::nvme
