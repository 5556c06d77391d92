#include "core/fnv.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

// The authors' test vectors.
TEST(Fnv1a, GivesThePublishedValues) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a("a").value(), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a("foobar").value(), 0x85944171f73967e8u);
}

TEST(Fnv1a, TakesNumbersAsTheirBytes) {
  Fnv1a number, bytes;
  number.add(std::uint32_t{0x64636261});
  bytes.add("abcd");
  EXPECT_EQ(number.value(), bytes.value());
}

TEST(Fnv1a, FitsADouble) {
  const Fnv1a hash("foobar");
  EXPECT_EQ(static_cast<std::uint64_t>(hash.as_double()), hash.value() >> 11);
}

}  // namespace
}  // namespace strata
