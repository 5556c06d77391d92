#include "zero/flat_layout.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace strata::zero {
namespace {

GroupDecl group_of(std::vector<std::vector<std::int64_t>> shapes) {
  GroupDecl group{"g", {}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    group.params.push_back({std::string(1, static_cast<char>('a' + i)), shapes[i], i % 2 == 0});
  }
  return group;
}

TEST(FlatLayout, ParametersAreInOrderAlignedAndDisjoint) {
  const FlatLayout layout(group_of({{3, 5}, {33}, {1}, {64}, {7, 7, 7}}), 1);
  std::size_t end = 0;
  for (const ParamSlot& slot : layout.params()) {
    EXPECT_EQ(slot.offset % FlatLayout::kParamAlignment, 0U);
    EXPECT_GE(slot.offset, end);
    EXPECT_LT(slot.offset - end, FlatLayout::kParamAlignment);
    end = slot.offset + slot.numel;
  }
  EXPECT_EQ(layout.params()[0].numel, 15U);
  EXPECT_EQ(layout.params()[4].numel, 343U);
  EXPECT_EQ(layout.param_numel(), 15U + 33 + 1 + 64 + 343);
  EXPECT_GE(layout.numel(), end);
}

TEST(FlatLayout, OneRanksShardIsTheWholeInWholePagesOf16Bit) {
  const FlatLayout layout(group_of({{2048}, {1}}), 1);
  EXPECT_EQ(layout.shard_numel(), 2 * FlatLayout::kShardAlignment);
  EXPECT_EQ(layout.numel(), layout.shard_numel());
}

TEST(FlatLayout, ShardsOfSeveralRanksBeginOnTheNormsBlocks) {
  for (const std::size_t world : {2, 3, 8}) {
    const FlatLayout layout(group_of({{300, 1000}}), world);
    EXPECT_EQ(layout.shard_numel() % ShardMath::kNormBlock, 0U);
    EXPECT_EQ(layout.numel(), layout.shard_numel() * world);
    EXPECT_GE(layout.numel(), 300000U);
    EXPECT_LT(layout.shard_numel(), 300000 / world + 1 + ShardMath::kNormBlock);
  }
}

TEST(FlatLayout, AGroupWithoutParametersStillHasAShard) {
  const FlatLayout layout(GroupDecl{"empty", {}}, 2);
  EXPECT_GT(layout.shard_numel(), 0U);
  EXPECT_TRUE(layout.segments(0, layout.numel()).empty());
}

// One may share its offset with the next one.
TEST(FlatLayout, ParametersWithoutElementsHaveAPlaceAndNoSegment) {
  const FlatLayout layout(group_of({{0}, {300}, {0, 4}, {5}, {4, 0}}), 1);
  ASSERT_EQ(layout.params().size(), 5U);
  EXPECT_EQ(layout.param_numel(), 305U);
  EXPECT_EQ(layout.params()[2].numel, 0U);
  EXPECT_EQ(layout.params()[2].offset, layout.params()[3].offset);
  for (const std::size_t window : {1, 7, 100, 256, 2048}) {
    std::vector<int> covered(layout.numel(), 0);
    for (std::size_t first = 0; first < layout.numel(); first += window) {
      for (const Segment& segment : layout.segments(first, std::min(window, layout.numel() - first))) {
        EXPECT_GT(segment.numel, 0U);
        for (std::size_t i = 0; i < segment.numel; ++i) ++covered[first + segment.offset + i];
      }
    }
    layout.for_each_gap([&](std::size_t offset, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) --covered[offset + i];
    });
    EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), 305) << window;
    EXPECT_EQ(std::count(covered.begin(), covered.end(), 0), 0) << window;
  }
}

TEST(FlatLayout, AGroupOfParametersWithoutElementsIsPadding) {
  const FlatLayout layout(group_of({{0}, {0, 4}}), 2);
  EXPECT_EQ(layout.param_numel(), 0U);
  EXPECT_TRUE(layout.segments(0, layout.numel()).empty());
  std::size_t gaps = 0;
  layout.for_each_gap([&](std::size_t, std::size_t count) { gaps += count; });
  EXPECT_EQ(gaps, layout.numel());
}

TEST(FlatLayout, SegmentsOfTheWholeAreTheParameters) {
  const FlatLayout layout(group_of({{3, 5}, {33}}), 1);
  const std::vector<Segment> segments = layout.segments(0, layout.numel());
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[0].name, "a");
  EXPECT_EQ(segments[0].shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_TRUE(segments[0].decay);
  EXPECT_FALSE(segments[1].decay);
  EXPECT_EQ(segments[1].offset, 256U);
  EXPECT_EQ(segments[1].numel, 33U);
}

TEST(FlatLayout, SegmentsAreCutAtTheWindowAndCountFromIt) {
  const FlatLayout layout(group_of({{240}, {100}}), 1);  // at 0 and 256
  const std::vector<Segment> segments = layout.segments(230, 50);
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[0].offset, 0U);
  EXPECT_EQ(segments[0].numel, 10U);
  EXPECT_EQ(segments[1].offset, 26U);
  EXPECT_EQ(segments[1].numel, 24U);
  EXPECT_TRUE(layout.segments(240, 16).empty()) << "a gap";
  EXPECT_TRUE(layout.segments(356, 1000).empty()) << "the tail";
}

TEST(FlatLayout, WindowsOfAnySizeCoverEveryParameterElementOnce) {
  const FlatLayout layout(group_of({{3, 5}, {33}, {1}, {64}, {7, 7, 7}, {2000}}), 1);
  for (const std::size_t window : {1, 7, 32, 100, 2048}) {
    std::vector<int> covered(layout.numel(), 0);
    for (std::size_t first = 0; first < layout.numel(); first += window) {
      const std::size_t count = std::min(window, layout.numel() - first);
      for (const Segment& segment : layout.segments(first, count)) {
        for (std::size_t i = 0; i < segment.numel; ++i) ++covered[first + segment.offset + i];
      }
    }
    layout.for_each_gap([&](std::size_t offset, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) --covered[offset + i];
    });
    for (std::size_t i = 0; i < covered.size(); ++i) ASSERT_EQ(std::abs(covered[i]), 1) << i;
    EXPECT_EQ(static_cast<std::size_t>(std::count(covered.begin(), covered.end(), 1)), layout.param_numel());
  }
}

TEST(FlatLayout, RefusesAWorldWithoutRanks) {
  EXPECT_THROW(FlatLayout(group_of({{3}}), 0), ContractViolation);
}

}  // namespace
}  // namespace strata::zero
