#include "nvme/checksum.h"

#include <gtest/gtest.h>

#include "support/patterned_bytes.h"

namespace strata::nvme {
namespace {

// From the specification's reference implementation (xxhsum -H3): the result must not depend on the processor.
TEST(Checksum, GivesThePublishedValues) {
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2u);
  const std::string text(1000, 'a');
  EXPECT_EQ(checksum(std::as_bytes(std::span(text))), 0xb3e7af627147db7cu);
  const std::string longer(1 << 20, 'b');
  EXPECT_EQ(checksum(std::as_bytes(std::span(longer))), 0x3307297a8e31e6bau);
}

TEST(Checksum, ChangesWithAnySingleBit) {
  std::vector<std::byte> bytes = test::random_bytes(5000, 1);
  const std::uint64_t before = checksum(bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    const std::byte bit{static_cast<unsigned char>(1u << (at % 8))};
    bytes[at] ^= bit;
    EXPECT_NE(checksum(bytes), before) << at;
    bytes[at] ^= bit;
  }
}

TEST(Checksum, DoesNotDependOnTheAddress) {
  const std::vector<std::byte> bytes = test::random_bytes(100'001, 2);
  for (std::size_t shift = 0; shift < 65; ++shift) {
    test::GuardedBytes memory(bytes.size(), shift);
    std::copy(bytes.begin(), bytes.end(), memory.span().begin());
    EXPECT_EQ(checksum(memory.span()), checksum(bytes)) << shift;
  }
}

}  // namespace
}  // namespace strata::nvme
