#include "nvme/device_profile.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

namespace fs = std::filesystem;

// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const old = ::getenv(name)) old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class DeviceProfileTest : public testing::Test {
 protected:
  test::TempDir directory_;
  fs::path file_ = directory_.path() / "cache" / "drives.json";
  Variable variable_{"STRATA_DRIVE_PROFILES", file_.c_str()};
  const DeviceProfile profile_{.block_bytes = 256 << 10,
                               .queue_depth = 16,
                               .ring = RingMode::Polled,
                               .burst_bytes = 8 << 20,
                               .read_rate = 3.5e9,
                               .write_rate = 1.25e9,
                               .mixed_rate = 2e9};
};

TEST_F(DeviceProfileTest, IsLoadedAsItWasSaved) {
  EXPECT_FALSE(load_profile(directory_.path()));
  ASSERT_TRUE(save_profile(directory_.path(), profile_));
  EXPECT_EQ(load_profile(directory_.path()), profile_);
}

TEST_F(DeviceProfileTest, IsThatOfTheDriveBelowADirectoryThatIsStillToBeMade) {
  ASSERT_TRUE(save_profile(directory_.path(), profile_));
  EXPECT_EQ(load_profile(directory_.path() / "not" / "there"), profile_);
}

TEST_F(DeviceProfileTest, ReplacesTheEntryOfItsDriveAndKeepsTheOthers) {
  ASSERT_TRUE(save_profile(directory_.path(), {}));
  std::string text = read_file(file_);
  const std::string drive = "\"" + drive_of(directory_.path()) + "\"";
  text.replace(text.find(drive), drive.size(), "\"another drive\"");
  write_file(file_, text);
  EXPECT_FALSE(load_profile(directory_.path()));
  ASSERT_TRUE(save_profile(directory_.path(), profile_));
  EXPECT_EQ(load_profile(directory_.path()), profile_);
  EXPECT_NE(read_file(file_).find("another drive"), std::string::npos);
}

TEST_F(DeviceProfileTest, LeavesNoOtherFileBehind) {
  ASSERT_TRUE(save_profile(directory_.path(), profile_));
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(DeviceProfileTest, IsUnknownWhereTheFileMakesNoSense) {
  ASSERT_TRUE(save_profile(directory_.path(), profile_));
  const std::string good = read_file(file_);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::string> broken{
      "",
      "{",
      "[]",
      "{}",
      R"({"version": 1})",
      R"({"version": 1, "drives": 7})",
      with("\"version\": 1", "\"version\": 2"),
      with("262144", "0"),
      with("262144", "1000"),
      with("262144", "2147483648"),
      with("262144", "-4096"),
      with("\"queue_depth\": 16", "\"queue_depth\": 0"),
      with("\"queue_depth\": 16", "\"queue_depth\": 5000"),
      with("\"queue_depth\": 16", "\"queue_depth\": \"deep\""),
      with("\"queue_depth\": 16", "\"queue_depth\": 1.5"),
      with("polled", "interrupted"),
      with("1250000000.0", "-1.0"),
  };
  for (const std::string& text : broken) {
    SCOPED_TRACE(text);
    write_file(file_, text);
    EXPECT_FALSE(load_profile(directory_.path()));
    ASSERT_TRUE(save_profile(directory_.path(), profile_)) << "a broken file must not be in the way";
    EXPECT_EQ(load_profile(directory_.path()), profile_);
  }
}

// Runs in a child process, because a warning is given once per process.
[[noreturn]] void load_broken_profiles(const fs::path& directory) {
  const bool none = !load_profile(directory) && !load_profile(directory);
  std::_Exit(none ? 0 : 1);
}

TEST(DeviceProfileDeathTest, WarnsOnceOfABrokenFile) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  test::TempDir directory;
  const fs::path file = directory.path() / "drives.json";
  const Variable variable("STRATA_DRIVE_PROFILES", file.c_str());
  write_file(file, "{nonsense");
  EXPECT_EXIT(load_broken_profiles(directory.path()), testing::ExitedWithCode(0),
              "^[^\n]*ignoring the drive profiles in [^\n]*drives.json[^\n]*strata tune[^\n]*\n?$");
}

TEST_F(DeviceProfileTest, IsNotSavedWhereNoFileCanBeMade) {
  write_file(directory_.path() / "file", "x");
  const fs::path below_a_file = directory_.path() / "file" / "drives.json";
  const Variable variable("STRATA_DRIVE_PROFILES", below_a_file.c_str());
  testing::internal::CaptureStderr();
  EXPECT_FALSE(save_profile(directory_.path(), profile_));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("cannot be saved in " + below_a_file.string()),
            std::string::npos);
}

TEST_F(DeviceProfileTest, IsNotSavedOverADirectory) {
  fs::create_directories(file_);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(save_profile(directory_.path(), profile_));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("cannot be saved"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), fs::directory_iterator()), 1);
}

TEST(ProfileFile, IsNamedByTheFirstVariableThatIsSet) {
  const Variable home("HOME", "/home/me");
  const Variable cache("XDG_CACHE_HOME", nullptr);
  const Variable file("STRATA_DRIVE_PROFILES", nullptr);
  EXPECT_EQ(profile_file(), "/home/me/.cache/strata/drives.json");
  const Variable other_cache("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(profile_file(), "/cache/strata/drives.json");
  const Variable other_file("STRATA_DRIVE_PROFILES", "/etc/drives.json");
  EXPECT_EQ(profile_file(), "/etc/drives.json");
}

TEST(ProfileFile, HasNoNameWithoutAHome) {
  const Variable home("HOME", nullptr);
  const Variable cache("XDG_CACHE_HOME", nullptr);
  const Variable file("STRATA_DRIVE_PROFILES", nullptr);
  EXPECT_TRUE(profile_file().empty());
  EXPECT_FALSE(load_profile("/"));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(save_profile("/", {}));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("STRATA_DRIVE_PROFILES"), std::string::npos);
}

// A sysfs of this test's own, with one disk "disk0" (8:0) that has one partition (8:1).
class DriveOf : public testing::Test {
 protected:
  DriveOf() {
    write_file(disk_ / "dev", "8:0\n");
    write_file(disk_ / "disk0p1" / "dev", "8:1\n");
    write_file(disk_ / "disk0p1" / "partition", "1\n");
    fs::create_directories(sysfs_ / "dev" / "block");
    fs::create_symlink("../../devices/block/disk0", sysfs_ / "dev" / "block" / "8:0");
    fs::create_symlink("../../devices/block/disk0/disk0p1", sysfs_ / "dev" / "block" / "8:1");
  }
  test::TempDir directory_;
  fs::path sysfs_ = directory_.path();
  fs::path disk_ = sysfs_ / "devices" / "block" / "disk0";
};

TEST_F(DriveOf, IsModelAndSerialOfTheWholeDisk) {
  write_file(disk_ / "device" / "model", "Fast SSD 2TB                \n");
  write_file(disk_ / "device" / "serial", "  S123\n");
  write_file(disk_ / "wwid", "eui.0025\n");
  EXPECT_EQ(drive_of(8, 0, sysfs_), "Fast SSD 2TB S123");
  EXPECT_EQ(drive_of(8, 1, sysfs_), "Fast SSD 2TB S123");
}

TEST_F(DriveOf, IsAnotherLastingIdentityWhereThereIsNoSerial) {
  write_file(disk_ / "dm" / "uuid", "LVM-abc\n");
  EXPECT_EQ(drive_of(8, 1, sysfs_), "LVM-abc");
}

TEST_F(DriveOf, IsTheNumberOfTheDiskWhereNothingTellsDisksApart) {
  write_file(disk_ / "device" / "model", "Fast SSD 2TB\n");
  EXPECT_EQ(drive_of(8, 1, sysfs_), "8:0");
}

TEST_F(DriveOf, IsTheNumberOfTheFileSystemWhereThereIsNoDisk) {
  EXPECT_EQ(drive_of(0, 45, sysfs_), "0:45");
}

}  // namespace
}  // namespace strata::nvme
