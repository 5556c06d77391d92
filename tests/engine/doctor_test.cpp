#include "engine/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/doctor_drives.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

cuda::DeviceFacts facts(int index) {
  return {.index = index,
          .name = "Card",
          .major = 9,
          .minor = 0,
          .total_bytes = 80 * kGiB,
          .free_bytes = 79 * kGiB,
          .numa_node = 1};
}

TEST(DoctorOfGpus, SaysWhyThereIsNone) {
  const auto found = examine_gpus({.count = 0, .why_no_more = "no driver"}, facts);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].verdict, Verdict::Missing);
  EXPECT_THAT(found[0].text, HasSubstr("no driver"));
  EXPECT_THAT(found[0].advice, Not(IsEmpty()));
}

TEST(Doctor, NamesTheGpuThatIsLeftOut) {
  const auto found = examine_gpus({.count = 1, .why_no_more = "Old GPU has compute capability 6.1"},
                                  [](int) { return cuda::DeviceFacts{.name = "New GPU"}; });
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].subject, "GPU 1");
  EXPECT_EQ(found[1].verdict, Verdict::Missing);
  EXPECT_EQ(found[1].text, "not used: Old GPU has compute capability 6.1");
}

TEST(DoctorOfGpus, NamesEachWithItsMemoryAndNode) {
  const auto found = examine_gpus({.count = 2}, facts);

  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].subject, "GPU 1");
  EXPECT_EQ(found[1].verdict, Verdict::Ok);
  EXPECT_EQ(found[1].text, "Card, capability 9.0, 79.00 GiB of 80.00 GiB free, NUMA node 1");
}

TEST(DoctorOfGpus, OneThatCannotBeOpenedDoesNotHideTheOthers) {
  const auto found = examine_gpus({.count = 2}, [](int device) {
    if (device == 0) throw DeviceError("ECC error");
    return facts(device);
  });

  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].verdict, Verdict::Missing);
  EXPECT_EQ(found[0].text, "ECC error");
  EXPECT_EQ(found[1].verdict, Verdict::Ok);
}

TEST(DoctorOfGpus, MemoryThatOthersHoldIsSaid) {
  const auto found = examine_gpus({.count = 1}, [](int device) {
    cuda::DeviceFacts taken = facts(device);
    taken.free_bytes = kGiB;
    return taken;
  });

  EXPECT_EQ(found.at(0).verdict, Verdict::Slow);
  EXPECT_THAT(found[0].advice, HasSubstr("other processes"));
}

TEST(DoctorOfNccl, TellsBuiltInFromUsable) {
  EXPECT_EQ(examine_nccl({.built_in = true, .version = "2.28.9"}, 1).verdict, Verdict::Ok);
  const Finding unused = examine_nccl({.built_in = true, .version = "2.28.9"}, 0);
  const Finding none = examine_nccl({}, 1);

  EXPECT_EQ(unused.verdict, Verdict::Missing);
  EXPECT_THAT(unused.text, HasSubstr("version 2.28.9, no GPU"));
  EXPECT_EQ(none.verdict, Verdict::Missing);
  EXPECT_THAT(none.text, HasSubstr("not in the CUDA plug-in"));
}

TEST(DoctorOfMemory, ALimitCountsWhereItIsBelowTheMachine) {
  const Finding limited = examine_ram({.total = 64 * kGiB, .available = 7 * kGiB, .limit = 8 * kGiB});
  const Finding free = examine_ram({.total = 64 * kGiB, .available = 60 * kGiB, .limit = ~std::uint64_t{0}});

  EXPECT_EQ(limited.verdict, Verdict::Ok);
  EXPECT_THAT(limited.text, HasSubstr("limit 8.00 GiB"));
  EXPECT_EQ(free.text, "60.00 GiB of 64.00 GiB available");
  EXPECT_TRUE(free.facts.at("limit_bytes").is_null());
}

TEST(DoctorOfMemory, LittleOfItAndSwapInUseAreSlow) {
  EXPECT_EQ(examine_ram({.total = 64 * kGiB, .available = kGiB}).verdict, Verdict::Slow);
  EXPECT_EQ(examine_swap(0, 0).verdict, Verdict::Ok);
  EXPECT_EQ(examine_swap(8 * kGiB, 0).verdict, Verdict::Ok);
  EXPECT_EQ(examine_swap(8 * kGiB, 2 * kGiB).verdict, Verdict::Slow);
}

TEST(DoctorOfMemory, TheLimitOfLockedMemoryHoldsUnlessTheUserIsExempt) {
  EXPECT_EQ(examine_locked_memory(65536, false, kGiB).verdict, Verdict::Slow);
  EXPECT_EQ(examine_locked_memory(65536, true, kGiB).verdict, Verdict::Ok);
  EXPECT_EQ(examine_locked_memory(2 * kGiB, false, kGiB).verdict, Verdict::Ok);
  EXPECT_EQ(examine_locked_memory(std::nullopt, false, kGiB).text, "unlimited");
}

TEST(DoctorOfMemory, HugePagesAreEitherReservedOrTransparent) {
  EXPECT_EQ(examine_huge_pages({.bytes = 2 << 20, .transparent = "never"}).verdict, Verdict::Slow);
  EXPECT_EQ(examine_huge_pages({.free = 10, .bytes = 2 << 20, .transparent = "never"}).verdict, Verdict::Ok);
  EXPECT_EQ(examine_huge_pages({.transparent = "madvise"}).verdict, Verdict::Ok);
}

TEST(DoctorOfProcessors, ScalarCodeOneCpuAndUpcastProductsAreSlow) {
  EXPECT_EQ(examine_cpus(8, 8, cpu_adam::Isa::Avx2).verdict, Verdict::Ok);
  EXPECT_EQ(examine_cpus(1, 8, cpu_adam::Isa::Avx2).verdict, Verdict::Slow);
  EXPECT_EQ(examine_cpus(8, 8, cpu_adam::Isa::Scalar).verdict, Verdict::Slow);
  EXPECT_EQ(examine_products(3.0).verdict, Verdict::Slow);
  EXPECT_EQ(examine_products(0.3).verdict, Verdict::Ok);
}

constexpr const char* kMounts =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n"
    "40 27 254:1 / /data rw - xfs /dev/vdb rw\n"
    "41 40 0:30 / /data/two\\040words rw - nfs4 host:/x rw\n"
    "42 40 0:31 / /data/hidden rw - xfs /dev/vdc rw\n"
    "43 42 0:32 / /data/hidden rw - tmpfs none rw\n"
    "a line of something else\n";

TEST(DoctorOfDrives, TheLongestMountHoldsAPath) {
  EXPECT_EQ(file_system_of("/home/x", kMounts), "ext4");
  EXPECT_EQ(file_system_of("/data", kMounts), "xfs");
  EXPECT_EQ(file_system_of("/database", kMounts), "ext4");
  EXPECT_EQ(file_system_of("/data/two words/y", kMounts), "nfs4");
  EXPECT_EQ(file_system_of("/data/hidden/y", kMounts), "tmpfs");
  EXPECT_EQ(file_system_of("/x", ""), "");
}

TEST(DoctorOfDrives, MemoryNetworksAndThePageCacheAreSlow) {
  EXPECT_EQ(examine_file_system("/d", "ext4", true, true).advice, "");
  const Finding unmeasured = examine_file_system("/d", "ext4", true, false);
  EXPECT_EQ(unmeasured.verdict, Verdict::Ok);
  EXPECT_THAT(unmeasured.advice, HasSubstr("strata tune --nvme /d"));
  for (const char* type : {"tmpfs", "nfs4", "fuse.sshfs"}) {
    EXPECT_EQ(examine_file_system("/d", type, true, true).verdict, Verdict::Slow) << type;
  }
  EXPECT_EQ(examine_file_system("/d", "ext4", false, true).verdict, Verdict::Slow);
}

TEST(DoctorOfDrives, SaysHowManyParametersTheSpaceHolds) {
  EXPECT_THAT(examine_free_space("/d", 20 * 14 * std::uint64_t{1000000000} / 19).text,
              HasSubstr("1.0 B parameters with fp32 states, 2.3 B with narrow ones"));
  EXPECT_EQ(examine_free_space("/d", 1000).verdict, Verdict::Missing);
}

TEST(DoctorOfDrives, AFolderIsProbedAndLeftAsItWas) {
  const test::TempDir folder;

  const auto found = examine_folder(folder.path());

  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].verdict, Verdict::Missing) << found[0].text;
  EXPECT_GT(found[1].facts.at("free_bytes").get<std::uint64_t>(), 0u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DoctorOfDrives, AFolderWithoutRoomIsAFinding) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=16k");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();

  const auto found = examine_folder(mount.path());

  EXPECT_EQ(found.at(0).verdict, Verdict::Missing);
  EXPECT_THAT(found[0].text, HasSubstr("cannot be used"));
  EXPECT_EQ(found.at(1).verdict, Verdict::Missing);
}

TEST(DoctorOfDrives, WhatIsNoFolderIsRefused) {
  EXPECT_THROW(examine_folder("/proc/self/exe"), ConfigError);
  EXPECT_THROW(examine_folder("/no/such/folder"), ConfigError);
}

TEST(DoctorOfDrives, AnIoUringThatWorksIsDescribed) {
  const Finding found = examine_io_uring();

  EXPECT_EQ(found.facts.at("usable").get<bool>(), found.verdict != Verdict::Missing);
  EXPECT_THAT(found.text, HasSubstr("liburing"));
}

}  // namespace
}  // namespace strata::engine
