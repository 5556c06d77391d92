#include "bench/published_bytes.h"

#include <gtest/gtest.h>

namespace strata::bench {
namespace {

constexpr double kWeight = 2, kGradient = 2, kStates = 12;

// The paper's example: 7.5e9 parameters on 64 devices.
TEST(PublishedBytes, HeldAreThoseOfThePaper) {
  const auto gigabytes = [](int stage) {
    return published_held_bytes({.stage = stage, .ranks = 64, .elements = 7'500'000'000}, kWeight, kGradient, kStates) *
           1e-9;
  };
  EXPECT_NEAR(gigabytes(0), 120, 0.1);
  EXPECT_NEAR(gigabytes(1), 31.4, 0.1);
  EXPECT_NEAR(gigabytes(2), 16.6, 0.1);
  EXPECT_NEAR(gigabytes(3), 1.9, 0.1);
}

TEST(PublishedBytes, SentCountMicroBatchesWhereEachIsReduced) {
  const auto elements = [](int stage, zero::Accumulation accumulation) {
    return published_sent_bytes(
        {.stage = stage, .ranks = 4, .elements = 1000, .micro_batches = 3, .accumulation = accumulation}, 1, 1);
  };
  const auto horizontal = zero::Accumulation::Horizontal;
  EXPECT_EQ(elements(0, horizontal), 2 * 750);
  EXPECT_EQ(elements(1, horizontal), 2 * 750);
  EXPECT_EQ(elements(2, horizontal), 4 * 750);
  EXPECT_EQ(elements(3, horizontal), 9 * 750);
  EXPECT_EQ(elements(3, zero::Accumulation::Vertical), 3 * 750);
}

TEST(PublishedBytes, SumsOfMicroBatchesTravelInTheirOwnType) {
  const auto bytes = [](int stage) {
    return published_sent_bytes({.stage = stage, .ranks = 2, .elements = 1000, .micro_batches = 2}, 2, 4);
  };
  EXPECT_EQ(bytes(0), 4000);
  EXPECT_EQ(bytes(1), 3000);
  EXPECT_EQ(bytes(2), 3000);
  EXPECT_EQ(published_sent_bytes({.stage = 3, .ranks = 1, .elements = 1000}, 2, 2), 0);
}

}  // namespace
}  // namespace strata::bench
