#include "engine/machine.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <vector>

#include "support/small_mount.h"

namespace strata::engine {
namespace {

TEST(Machine, HasNoMoreRamAvailableThanInstalled) {
  struct sysinfo info {};
  ASSERT_EQ(::sysinfo(&info), 0);
  EXPECT_GT(available_ram_bytes(), 0u);
  EXPECT_LE(available_ram_bytes(), static_cast<std::uint64_t>(info.totalram) * info.mem_unit);
}

TEST(Machine, CountsTouchedPagesAsResident) {
  constexpr std::size_t kBytes = std::size_t{48} << 20;
  const std::uint64_t before = resident_bytes();
  const std::vector<char> touched(kBytes, 1);
  const std::uint64_t after = resident_bytes();
  EXPECT_EQ(touched[kBytes / 2], 1);
  EXPECT_GT(before, 0u);
  EXPECT_GE(after, before + kBytes / 2);  // half: other memory of this process may go meanwhile
}

TEST(Machine, AsksTheNearestParentOfAFolderThatIsNotThereYet) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=1m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const std::uint64_t free = free_disk_bytes(mount.path());
  EXPECT_GT(free, 0u);
  EXPECT_LE(free, std::uint64_t{1} << 20);
  EXPECT_EQ(free_disk_bytes(mount.path() / "not" / "there" / "yet"), free);
}

TEST(Machine, KnowsFreeDiskOfARelativeFolder) {
  EXPECT_GT(free_disk_bytes("a-folder-that-is-not-there"), 0u);
}

}  // namespace
}  // namespace strata::engine
