#include "cuda/update_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/state_encodings.h"
#include "support/test_seed.h"

namespace strata::cuda {
namespace {

using kernels::Intervals;
using kernels::Treatment;

struct Cut {
  UpdateRange range;
  Intervals intervals;
};

std::vector<Cut> cuts_of(const std::vector<Segment>& segments, std::size_t numel, std::uint64_t first_element = 0) {
  std::vector<Cut> cuts;
  for (std::size_t from = 0;;) {
    Cut cut;
    cut.range = next_update_range(segments, numel, first_element, from, cut.intervals);
    if (cut.range.empty()) return cuts;
    cuts.push_back(cut);
    from = cut.range.end;
  }
}

TEST(UpdateRanges, JoinNeighboursThatAreTreatedAlike) {
  const std::vector<Segment> segments = {
      {"a", {}, 300, 10, true}, {"b", {}, 310, 5, true}, {"empty", {}, 315, 0, false}, {"c", {}, 320, 4, false}};

  const std::vector<Cut> cuts = cuts_of(segments, 1000);

  ASSERT_EQ(cuts.size(), 1u);
  EXPECT_EQ(cuts[0].range.begin, 256u);
  EXPECT_EQ(cuts[0].range.end, 512u);
  const Intervals& intervals = cuts[0].intervals;
  ASSERT_EQ(intervals.count, 5);
  EXPECT_EQ(std::vector<std::int64_t>(intervals.ends, intervals.ends + 5),
            (std::vector<std::int64_t>{44, 59, 64, 68, 256}));
  EXPECT_EQ(std::vector<Treatment>(intervals.treatments, intervals.treatments + 5),
            (std::vector<Treatment>{Treatment::Padding, Treatment::Decay, Treatment::Padding, Treatment::NoDecay,
                                    Treatment::Padding}));
}

TEST(UpdateRanges, EndWhereTheUpperHalfOfTheIndexChanges) {
  const std::vector<Segment> segments = {{"a", {}, 0, 1000, true}};

  const std::vector<Cut> cuts = cuts_of(segments, 1000, (std::uint64_t{1} << 32) - 512);

  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].range.end, 512u);
  EXPECT_EQ(cuts[1].range.begin, 512u);
  EXPECT_EQ(cuts[1].range.end, 1000u);
}

TEST(UpdateRanges, HoldMoreThan32BitsOfElements) {
  constexpr std::size_t kNumel = std::size_t{3} << 31;
  const std::vector<Cut> cuts = cuts_of({{"a", {}, 0, kNumel, true}}, kNumel);

  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].range.end, std::size_t{1} << 32);
  EXPECT_EQ(cuts[0].intervals.ends[0], std::int64_t{1} << 32);
  EXPECT_EQ(cuts[1].intervals.ends[0], std::int64_t{1} << 31);
}

// What each element's treatment is, by the segments alone.
std::vector<Treatment> defined_treatments(const std::vector<Segment>& segments, std::size_t numel) {
  std::vector<Treatment> treatments(numel, Treatment::Padding);
  for (const Segment& segment : segments) {
    std::fill_n(treatments.begin() + static_cast<long>(segment.offset), segment.numel,
                segment.decay ? Treatment::Decay : Treatment::NoDecay);
  }
  return treatments;
}

void expect_defined_treatments(const std::vector<Segment>& segments, std::size_t numel, std::uint64_t first_element) {
  std::vector<Treatment> actual(numel, Treatment::Padding);
  std::size_t end = 0;
  for (const auto& [range, intervals] : cuts_of(segments, numel, first_element)) {
    ASSERT_GE(range.begin, end);
    ASSERT_LE(intervals.count, Intervals::kMost);
    ASSERT_EQ(intervals.ends[intervals.count - 1], static_cast<std::int64_t>(range.end - range.begin));
    if (first_element % kScaleBlock == 0) {
      ASSERT_EQ(range.begin % kScaleBlock, 0u);
      ASSERT_TRUE(range.end % kScaleBlock == 0 || range.end == numel);
    }
    end = range.end;
    for (std::size_t i = range.begin, at = 0; i < range.end; ++i) {
      while (intervals.ends[at] <= static_cast<std::int64_t>(i - range.begin)) ++at;
      actual[i] = intervals.treatments[at];
    }
  }
  EXPECT_TRUE(actual == defined_treatments(segments, numel));
}

TEST(UpdateRanges, TreatEveryElementAsItsSegmentAsks) {
  const std::uint64_t seed = test::test_seed(3);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    // The longest of a round: from one element, so that lists of intervals are full, to many blocks.
    const std::size_t longest = std::size_t{1} << random() % 11;
    std::vector<Segment> segments;
    std::size_t at = random() % 3 == 0 ? random() % 1000 : 0;
    for (std::size_t left = 1 + random() % 900; left > 0; --left) {
      segments.push_back({"", {}, at, random() % (longest + 1), random() % 2 == 0});
      at += segments.back().numel + (random() % 3 == 0 ? random() % (longest + 1) : 0);
    }
    const std::uint64_t first = (std::uint64_t{1} << 32) - random() % (at + 256);
    expect_defined_treatments(segments, at + random() % 300, round % 2 == 0 ? first : first / 256 * 256);
    if (HasFatalFailure()) return;
  }
}

TEST(UpdateRanges, CutListsThatAreFullBetweenBlocks) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < 2000; ++i) segments.push_back({"", {}, i, 1, i % 2 == 0});

  expect_defined_treatments(segments, 2000, 0);

  EXPECT_EQ(cuts_of(segments, 2000).size(), 8u);
}

}  // namespace
}  // namespace strata::cuda
