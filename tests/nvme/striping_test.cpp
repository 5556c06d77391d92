#include "nvme/striping.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

namespace strata::nvme {
namespace {

constexpr std::uint64_t kChunk = 100;
constexpr std::uint64_t kPlenty = std::numeric_limits<std::uint64_t>::max();

// Deals `chunks` chunks; what each path then holds.
std::vector<std::uint64_t> dealt(Striping striping, std::size_t chunks, std::vector<std::uint64_t> room) {
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::optional<std::size_t> path = striping.path_for_new(kChunk, room);
    if (!path) break;
    striping.add(*path, kChunk);
    room[*path] -= kChunk;
  }
  std::vector<std::uint64_t> bytes;
  for (std::size_t path = 0; path < room.size(); ++path) bytes.push_back(striping.bytes_on(path));
  return bytes;
}

TEST(Striping, DealsEqualWeightsInTurn) {
  EXPECT_EQ(dealt(Striping(3, kChunk), 9, {kPlenty, kPlenty, kPlenty}), (std::vector<std::uint64_t>{300, 300, 300}));
}

TEST(Striping, DealsInProportionToTheWeights) {
  Striping striping(3, kChunk);
  striping.set_weights({0.7, 0.2, 0.1});
  EXPECT_EQ(dealt(striping, 100, {kPlenty, kPlenty, kPlenty}), (std::vector<std::uint64_t>{7000, 2000, 1000}));
}

TEST(Striping, DealsWhatAFullPathCannotTakeToTheOthers) {
  EXPECT_EQ(dealt(Striping(3, kChunk), 12, {kPlenty, 250, kPlenty}), (std::vector<std::uint64_t>{500, 200, 500}));
}

TEST(Striping, HasNoPathWhenNoneHasRoom) {
  const std::array<std::uint64_t, 2> room{kChunk - 1, 0};
  EXPECT_EQ(Striping(2, kChunk).path_for_new(kChunk, room), std::nullopt);
}

TEST(Striping, MovesFromThePathThatHoldsTooMuchToTheOneThatLacksMost) {
  Striping striping(3, kChunk);
  striping.add(0, 800);
  striping.add(1, 200);
  EXPECT_EQ(striping.path_for_move(0), 2u);
  EXPECT_EQ(striping.path_for_move(1), std::nullopt);
}

TEST(Striping, MovesNothingForLessThanAChunk) {
  Striping striping(2, kChunk);
  striping.add(0, 600);
  striping.add(1, 500);
  EXPECT_EQ(striping.path_for_move(0), std::nullopt);
}

TEST(Striping, MovesNothingForLessThanAThirtySecondOfItsShare) {
  Striping striping(2, kChunk);
  striping.add(0, 100 * kChunk + 2 * kChunk);
  striping.add(1, 100 * kChunk - 2 * kChunk);
  EXPECT_EQ(striping.path_for_move(0), std::nullopt);
  striping.set_weights({0.47, 0.53});
  EXPECT_EQ(striping.path_for_move(0), 1u);
}

TEST(Striping, KeepsTheLastChunkOfAPath) {
  Striping striping(2, kChunk);
  striping.set_weights({0.001, 0.999});
  striping.add(0, kChunk);
  striping.add(1, 5 * kChunk);
  EXPECT_EQ(striping.path_for_move(0), std::nullopt);
}

// Whatever the weights: moves end, and end near the shares.
TEST(Striping, SettlesUnderRandomWeightsWithoutMovingBackAndForth) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t paths = 2 + random() % 4;
    Striping striping(paths, kChunk);
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t path = 0; path < paths; ++path) {
      striping.add(path, kChunk * (1 + random() % 400));
      sum += weights.emplace_back(0.05 + static_cast<double>(random() % 1000) / 1000);
    }
    for (double& weight : weights) weight /= sum;
    striping.set_weights(weights);
    std::uint64_t total = 0;
    for (std::size_t path = 0; path < paths; ++path) total += striping.bytes_on(path);
    std::size_t moves = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t path = 0; path < paths; ++path) {
        if (const std::optional<std::size_t> to = striping.path_for_move(path)) {
          striping.remove(path, kChunk);
          striping.add(*to, kChunk);
          moved = true;
          ASSERT_LE(++moves, total / kChunk) << "more moves than chunks";
        }
      }
    }
    for (std::size_t path = 0; path < paths; ++path) {
      const double share = weights[path] * static_cast<double>(total);
      // Others may each lack almost a chunk, which no move can give them.
      const double too_much = std::max(share / 32, static_cast<double>(paths * kChunk));
      EXPECT_LE(static_cast<double>(striping.bytes_on(path)), share + too_much);
    }
  }
}

}  // namespace
}  // namespace strata::nvme
