#include "core/cgroup.h"

#include <gtest/gtest.h>

#include <stdlib.h>

#include <fstream>
#include <string>

namespace strata {
namespace {

namespace fs = std::filesystem;

// A made-up /sys/fs/cgroup.
class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    std::string pattern = (fs::temp_directory_path() / "strata_cgroup_XXXXXX").string();
    mount_ = mkdtemp(pattern.data());
  }
  ~CgroupTest() override { fs::remove_all(mount_); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((mount_ / file).parent_path());
    std::ofstream(mount_ / file) << text;
  }

  fs::path mount_;
};

TEST_F(CgroupTest, NoFilesAreNoQuota) {
  EXPECT_EQ(cgroup_cpu_quota(mount_, "0::/a/b\n"), std::nullopt);
}

TEST_F(CgroupTest, NonsenseIsNoQuota) {
  write("cpu.max", "nonsense\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "nonsense\n::\n\n0:\n0::/\n"), std::nullopt);
}

TEST_F(CgroupTest, ReadsVersionTwo) {
  write("a/b/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "0::/a/b\n"), 1.5);
}

TEST_F(CgroupTest, MaxIsNoQuota) {
  write("a/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "0::/a\n"), std::nullopt);
}

TEST_F(CgroupTest, TheTightestAncestorLimits) {
  write("a/cpu.max", "200000 100000\n");
  write("a/b/cpu.max", "800000 100000\n");
  write("a/b/c/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "0::/a/b/c\n"), 2.0);
}

TEST_F(CgroupTest, APathOfTheHostFallsBackToTheMountItself) {
  write("cpu.max", "300000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "0::/not/mounted/here\n"), 3.0);
}

TEST_F(CgroupTest, ReadsVersionOneUnderItsControllers) {
  write("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000\n");
  write("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "5:memory:/m\n4:cpu,cpuacct:/docker/x\n"), 4.0);
}

TEST_F(CgroupTest, ReadsVersionOneUnderCpu) {
  write("cpu/x/cpu.cfs_quota_us", "50000\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "4:cpu,cpuacct:/x\n"), 0.5);
}

TEST_F(CgroupTest, MinusOneIsNoQuota) {
  write("cpu/x/cpu.cfs_quota_us", "-1\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "4:cpu:/x\n"), std::nullopt);
}

TEST_F(CgroupTest, OtherControllersDoNotCount) {
  write("cpuacct/x/cpu.cfs_quota_us", "100000\n");
  write("cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(mount_, "4:cpuacct:/x\n3:cpuset:/x\n"), std::nullopt);
}

}  // namespace
}  // namespace strata
