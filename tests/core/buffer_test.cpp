#include "core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "support/proc.h"

namespace strata {
namespace {

using namespace literals;

TEST(AllocateHost, GivesZeroedPageAlignedBytes) {
  Budget budget("ram", 1_MiB);
  const Buffer buffer = allocate_host(budget, 5000, MemoryTag::Staging);

  EXPECT_EQ(buffer.bytes(), 5000U);
  EXPECT_EQ(buffer.space(), MemorySpace::Pageable);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kPageBytes, 0U);
  EXPECT_TRUE(std::all_of(buffer.span().begin(), buffer.span().end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(AllocateHost, PaysForWholePages) {
  Budget budget("ram", 1_MiB);
  const Buffer buffer = allocate_host(budget, 5000, MemoryTag::Gather);

  EXPECT_EQ(budget.used(MemoryTag::Gather), 2 * kPageBytes);
}

TEST(AllocateHost, ReturnsTheBytesWithTheBuffer) {
  Budget budget("ram", 1_MiB);
  { const Buffer buffer = allocate_host(budget, 5000, MemoryTag::Gather); }
  EXPECT_EQ(budget.used(), 0U);
}

TEST(AllocateHost, OfZeroBytesIsAnEmptyBuffer) {
  Budget budget("ram", 0);
  const Buffer buffer = allocate_host(budget, 0, MemoryTag::Gather);

  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.bytes(), 0U);
}

TEST(AllocateHost, RefusesWhatDoesNotFitAfterRounding) {
  Budget budget("ram", kPageBytes + 100);
  EXPECT_THROW(allocate_host(budget, kPageBytes + 1, MemoryTag::Gather), OutOfBudget);
  EXPECT_EQ(budget.used(), 0U);
}

TEST(AllocateHost, RefusesASizeWhoseRoundingWouldWrapAround) {
  Budget budget("ram", 1_MiB);
  EXPECT_THROW(allocate_host(budget, std::numeric_limits<std::size_t>::max(), MemoryTag::Gather), OutOfBudget);
}

TEST(AllocateHost, ReportsAndReturnsWhatTheKernelRefuses) {
  Budget budget("ram", std::numeric_limits<std::uint64_t>::max());
  try {
    allocate_host(budget, std::size_t{1} << 62, MemoryTag::Gather);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().op, "mmap");
    EXPECT_EQ(error.failure().bytes, std::uint64_t{1} << 62);
  }
  EXPECT_EQ(budget.used(), 0U);
}

TEST(AllocateHost, PutsLargeBuffersOnHugePages) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) GTEST_SKIP() << "no transparent huge pages here";
  Budget budget("ram", 16_MiB);
  const Buffer large = allocate_host(budget, 4_MiB, MemoryTag::Gather);
  const std::string flags = test::flags_of_mapping(large.data());
  if (flags.empty()) GTEST_SKIP() << "no VmFlags in /proc/self/smaps";

  // Advised to be transparent, or of the machine's reserve.
  EXPECT_TRUE(flags.find(" hg") != std::string::npos || flags.find(" ht") != std::string::npos) << flags;
}

std::uint64_t resident_bytes() {
  return test::status_bytes("VmRSS") + test::status_bytes("HugetlbPages");
}

TEST(AllocateHost, OfAnOddSizeCostsThatSizeAndNoPowerOfTwo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps notes about every byte that is touched";
#endif
  constexpr std::uint64_t kPool = 1_GiB + 100_MiB + 12_KiB;
  Budget budget("ram", kPool);
  const std::uint64_t before = resident_bytes();
  const std::uint64_t locked = test::status_bytes("VmLck");

  const Buffer pool = allocate_host(budget, kPool, MemoryTag::Staging);
  std::fill(pool.span().begin(), pool.span().end(), std::byte{1});

  EXPECT_EQ(budget.used(), kPool);
  EXPECT_GE(resident_bytes() - before, kPool - 1_MiB) << "the measurement sees nothing";
  EXPECT_LE(resident_bytes() - before, kPool + 8_MiB);
  EXPECT_EQ(test::status_bytes("VmLck"), locked);
}

TEST(Buffer, DefaultIsEmpty) {
  const Buffer buffer;

  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.span().empty());
}

TEST(Buffer, FreesOnceAndBeforeItsBytesReturnToTheBudget) {
  Budget budget("ram", 100);
  std::array<std::byte, 8> memory{};
  int freed = 0;
  {
    Buffer first(memory.data(), memory.size(), MemorySpace::Pinned, budget.reserve(8, MemoryTag::Staging),
                 [&](std::byte* data, std::size_t bytes) {
                   ++freed;
                   EXPECT_EQ(data, memory.data());
                   EXPECT_EQ(bytes, memory.size());
                   EXPECT_EQ(budget.used(), 8U) << "the budget forgot memory that still existed";
                 });
    const Buffer second(std::move(first));
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
  EXPECT_EQ(budget.used(), 0U);
}

TEST(Buffer, MovingEmptiesTheSource) {
  Budget budget("ram", 1_MiB);
  Buffer first = allocate_host(budget, 100, MemoryTag::Staging);
  std::byte* const data = first.data();
  const Buffer second(std::move(first));

  EXPECT_FALSE(first);
  EXPECT_EQ(first.bytes(), 0U);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 100U);
}

TEST(Buffer, MoveAssignmentFreesWhatTheTargetHeld) {
  Budget budget("ram", 1_MiB);
  Buffer target = allocate_host(budget, kPageBytes, MemoryTag::Param);
  target = allocate_host(budget, 2 * kPageBytes, MemoryTag::Grad);

  EXPECT_EQ(budget.used(MemoryTag::Param), 0U);
  EXPECT_EQ(budget.used(MemoryTag::Grad), 2 * kPageBytes);
}

TEST(Buffer, MoveAssignmentToItselfKeepsTheBytes) {
  Budget budget("ram", 1_MiB);
  Buffer buffer = allocate_host(budget, 100, MemoryTag::Param);
  Buffer& alias = buffer;
  buffer = std::move(alias);

  EXPECT_EQ(buffer.bytes(), 100U);
  EXPECT_EQ(budget.used(), kPageBytes);
}

TEST(Buffer, ResetFreesAtOnce) {
  Budget budget("ram", 1_MiB);
  Buffer buffer = allocate_host(budget, 100, MemoryTag::Param);
  buffer.reset();

  EXPECT_FALSE(buffer);
  EXPECT_EQ(budget.used(), 0U);
}

TEST(TensorSpan, SubspanCountsElements) {
  std::array<std::byte, 32> memory{};
  const TensorSpan span{memory.data(), DType::F32, 8};

  const TensorSpan part = span.subspan(3, 2);

  EXPECT_EQ(span.bytes(), 32U);
  EXPECT_EQ(part.data, memory.data() + 12);
  EXPECT_EQ(part.numel, 2U);
  EXPECT_EQ(part.bytes(), 8U);
  EXPECT_EQ(part.dtype, DType::F32);
}

}  // namespace
}  // namespace strata
