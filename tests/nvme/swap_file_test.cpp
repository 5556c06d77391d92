#include "nvme/swap_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/bytes.h"
#include "core/error.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

namespace fs = std::filesystem;
using namespace literals;

std::uint64_t allocated_bytes(const SwapFile& file) {
  struct stat info {};
  EXPECT_EQ(::fstat(file.fd(), &info), 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

// Counts the names that appear in a directory.
class CreationWatch {
 public:
  explicit CreationWatch(const fs::path& directory) : watch_(::inotify_init1(IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(watch_.get(), directory.c_str(), IN_CREATE), 0);
  }
  bool saw_any() const {
    alignas(inotify_event) std::array<char, 4096> events;
    return ::read(watch_.get(), events.data(), events.size()) > 0;
  }

 private:
  FileDescriptor watch_;
};

TEST(SwapFile, NeverHasANameWhereTheFileSystemCanDoThat) {
  test::TempDir directory;
  const FileDescriptor probe(::open(directory.path().c_str(), O_TMPFILE | O_RDWR, 0600));
  if (probe.get() < 0) GTEST_SKIP() << "no O_TMPFILE in " << directory.path();
  const CreationWatch watch(directory.path());
  const SwapFile file(directory.path(), IoMode::Direct);
  EXPECT_FALSE(watch.saw_any());
}

TEST(SwapFile, IsMadeAndUnlinkedWhereItCannotBeUnnamed) {
  test::TempDir directory;
  const CreationWatch watch(directory.path());
  const SwapFile file(directory.path(), IoMode::Direct, SwapFileBirth::Unlinked);
  EXPECT_TRUE(watch.saw_any());
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(SwapFile, TouchesNoFileWhoseNameItWouldHaveChosen) {
  test::TempDir directory;
  const fs::path foreign = directory.path() / ("strata-swap-" + std::to_string(::getpid()) + "-0");
  std::ofstream(foreign) << "keep me";
  {
    SwapFile file(directory.path(), IoMode::Direct, SwapFileBirth::Unlinked);
    file.take(1_MiB, "blob");
  }
  std::string text;
  std::getline(std::ifstream(foreign), text);
  EXPECT_EQ(text, "keep me");
}

TEST(SwapFile, CannotBeGivenANameLater) {
  test::TempDir directory;
  for (const SwapFileBirth birth : {SwapFileBirth::Unnamed, SwapFileBirth::Unlinked}) {
    const SwapFile file(directory.path(), IoMode::Direct, birth);
    const std::string self = "/proc/self/fd/" + std::to_string(file.fd());
    EXPECT_NE(::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, (directory.path() / "name").c_str(), AT_SYMLINK_FOLLOW), 0);
  }
}

TEST(SwapFile, TakesSpaceAtTheEnd) {
  test::TempDir directory;
  SwapFile file(directory.path(), IoMode::Direct);
  EXPECT_EQ(file.take(1_MiB, "blob"), 0u);
  EXPECT_EQ(file.take(8_KiB, "blob"), 1_MiB);
  EXPECT_GE(allocated_bytes(file), 1_MiB + 8_KiB);
}

TEST(SwapFile, GivesSpaceBackAndUsesTheHoleAgain) {
  test::TempDir directory;
  SwapFile file(directory.path(), IoMode::Direct);
  for (int i = 0; i < 3; ++i) file.take(1_MiB, "blob");
  const std::uint64_t before = allocated_bytes(file);
  if (!file.give_back(1_MiB, 1_MiB)) GTEST_SKIP() << "holes cannot be punched in " << directory.path();
  EXPECT_EQ(allocated_bytes(file), before - 1_MiB);
  EXPECT_EQ(file.take(2_MiB, "too large for the hole"), 3_MiB);
  EXPECT_EQ(file.take(1_MiB, "just right"), 1_MiB);
  EXPECT_EQ(allocated_bytes(file), before + 2_MiB);
}

TEST(SwapFile, BecomesShorterWhenItsEndIsGivenBack) {
  test::TempDir directory;
  SwapFile file(directory.path(), IoMode::Direct);
  file.take(1_MiB, "blob");
  EXPECT_TRUE(file.give_back(file.take(1_MiB, "blob"), 1_MiB));
  EXPECT_EQ(file.take(4_KiB, "blob"), 1_MiB);
}

TEST(SwapFile, KeepsSpaceThatCannotBeGivenBack) {
  const test::SmallMount mount = test::SmallMount::memory("ramfs", "");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  SwapFile file(mount.path(), IoMode::Direct);
  file.take(1_MiB, "blob");
  file.take(1_MiB, "blob");
  EXPECT_FALSE(file.give_back(0, 1_MiB));
  EXPECT_EQ(file.take(1_MiB, "blob"), 2_MiB) << "what was not given back was taken again";
}

TEST(SwapFile, LeavesNothingAllocatedWhenItRefuses) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=2m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  SwapFile file(mount.path(), IoMode::Direct);
  file.take(1_MiB, "blob");
  const std::uint64_t before = allocated_bytes(file);
  EXPECT_THROW(file.take(4_MiB, "blob"), IoError);
  EXPECT_EQ(allocated_bytes(file), before);
  EXPECT_EQ(file.take(512_KiB, "blob"), 1_MiB);
}

TEST(SwapFile, AsksForTheSectorsOfTheDevice) {
  const test::SmallMount mount = test::SmallMount::image("ext4", 64, 4096);
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const SwapFile file(mount.path(), IoMode::Direct);
  EXPECT_EQ(file.mode(), IoMode::Direct);
  EXPECT_EQ(file.request_alignment() % 4096, 0u);
}

}  // namespace
}  // namespace strata::nvme
