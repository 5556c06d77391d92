#include "core/page_mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <span>
#include <string>

#include "core/error.h"
#include "core/memory_nodes.h"
#include "support/proc.h"

namespace strata {
namespace {

constexpr std::size_t kHuge = kHugePageBytes;

// A mapping that ends with the test.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : span_(map_pages(bytes), bytes) {}
  ~Pages() { unmap_pages(span_.data(), span_.size()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> span() const { return span_; }
  std::byte* data() const { return span_.data(); }

  void expect_zero_and_writable() const {
    EXPECT_TRUE(std::all_of(span_.begin(), span_.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::fill(span_.begin(), span_.end(), std::byte{0x5a});
  }

 private:
  std::span<std::byte> span_;
};

// Sees to it that the machine has `wanted` huge pages free while it lives: raises vm.nr_hugepages where this user may,
// and puts it back. One at a time on a machine, so that none puts back what another has raised.
class HugePageReserve {
 public:
  explicit HugePageReserve(std::uint64_t wanted) : lock_(::open((kFolder + "nr_hugepages").c_str(), O_RDONLY)) {
    if (lock_ < 0 || ::flock(lock_, LOCK_EX) != 0) return;
    before_ = read("nr_hugepages");
    const std::uint64_t free = this->free();
    if (free < wanted) write(before_ + wanted - free);
    enough_ = this->free() >= wanted;
  }
  ~HugePageReserve() {
    if (lock_ < 0) return;
    write(before_);
    ::close(lock_);
  }
  HugePageReserve(const HugePageReserve&) = delete;
  HugePageReserve& operator=(const HugePageReserve&) = delete;

  bool enough() const { return enough_; }
  // Not promised to anybody.
  std::uint64_t free() const { return read("free_hugepages") - read("resv_hugepages"); }

 private:
  static inline const std::string kFolder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  static std::uint64_t read(const std::string& name) {
    std::uint64_t value = 0;
    std::ifstream(kFolder + name) >> value;
    return value;
  }
  static void write(std::uint64_t pages) { std::ofstream(kFolder + "nr_hugepages") << pages; }

  const int lock_;
  std::uint64_t before_ = 0;
  bool enough_ = false;
};

std::uint64_t reserved_pages_in_use() {
  return test::status_bytes("HugetlbPages");
}

TEST(MapPages, GivesSmallRegionsAsTheyAre) {
  const Pages pages(3 * kPageBytes);
  pages.expect_zero_and_writable();
  EXPECT_EQ(reserved_pages_in_use(), 0U);
}

TEST(MapPages, BeginsLargeRegionsAtAHugePage) {
  for (const std::size_t bytes : {kHuge, kHuge + kPageBytes, 5 * kHuge - kPageBytes}) {
    const Pages pages(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.data()) % kHuge, 0U) << bytes;
    pages.expect_zero_and_writable();
  }
}

TEST(MapPages, GivesBackTheAddressesItUsedForAligning) {
  const std::uint64_t before = test::status_bytes("VmSize");
  const Pages pages(64 * kHuge + kPageBytes);
  EXPECT_LE(test::status_bytes("VmSize") - before, 65 * kHuge);
}

TEST(MapPages, RefusesASizeThatAligningWouldWrapAround) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / kPageBytes * kPageBytes;
  EXPECT_THROW(map_pages(kMost), IoError);
}

TEST(MapPages, CostsNoMemoryBeforeItsFirstTouch) {
  const std::uint64_t before = test::status_bytes("VmRSS");
  const Pages pages(64 * kHuge);
  if (reserved_pages_in_use() > 0) GTEST_SKIP() << "the machine has reserved huge pages, which are taken at once";

  EXPECT_LT(test::status_bytes("VmRSS"), before + 8 * kHuge);
}

TEST(MapPages, TakesWholeHugePagesFromTheReserveAndTheRestSmall) {
  const HugePageReserve reserve(3);
  if (!reserve.enough()) GTEST_SKIP() << "no huge pages are reserved and this user may not reserve any";
  {
    const Pages pages(3 * kHuge + 5 * kPageBytes);
    if (reserved_pages_in_use() == 0) GTEST_SKIP() << "another process took the reserved huge pages";

    EXPECT_EQ(reserved_pages_in_use(), 3 * kHuge) << "rounded up, or not all of them";
    pages.expect_zero_and_writable();
    EXPECT_EQ(reserved_pages_in_use(), 3 * kHuge);
  }
  EXPECT_EQ(reserved_pages_in_use(), 0U) << "not given back";
}

TEST(MapPages, UsesTransparentPagesAloneWhenTheReserveIsTooSmall) {
  const HugePageReserve reserve(2);
  if (!reserve.enough()) GTEST_SKIP() << "no huge pages are reserved and this user may not reserve any";
  const Pages pages((reserve.free() + 64) * kHuge);

  EXPECT_EQ(reserved_pages_in_use(), 0U);
  std::fill_n(pages.data(), kPageBytes, std::byte{1});
}

// ctest runs this with a made-up topology as well.
TEST(MapPages, SpreadsLargeRegionsOverTheNodes) {
  if (MemoryNodes().size() < 2) GTEST_SKIP() << "one NUMA node here";
  const Pages pages(4 * kHuge + kPageBytes);
  const std::string policy = test::numa_policy_of(pages.data());
  if (policy.empty()) GTEST_SKIP() << "no /proc/self/numa_maps here";

  EXPECT_NE(policy.find(" interleave:"), std::string::npos) << policy;
}

}  // namespace
}  // namespace strata
