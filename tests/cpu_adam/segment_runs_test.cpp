#include "cpu_adam/segment_runs.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace strata::cpu_adam {
namespace {

using RunTuple = std::tuple<std::size_t, std::size_t, bool>;

std::vector<RunTuple> runs_of(const std::vector<Segment>& segments, std::size_t begin, std::size_t end) {
  std::vector<RunTuple> runs;
  for_each_run(segments, begin, end,
               [&](std::size_t first, std::size_t numel, bool decay) { runs.emplace_back(first, numel, decay); });
  return runs;
}

TEST(SegmentRuns, CutAtTheRangeAndSkipPadding) {
  const std::vector<Segment> segments = {{"a", {}, 0, 10, true}, {"b", {}, 16, 4, false}, {"c", {}, 20, 10, true}};

  EXPECT_EQ(runs_of(segments, 0, 32), (std::vector<RunTuple>{{0, 10, true}, {16, 4, false}, {20, 10, true}}));
  EXPECT_EQ(runs_of(segments, 5, 18), (std::vector<RunTuple>{{5, 5, true}, {16, 2, false}}));
  EXPECT_EQ(runs_of(segments, 10, 16), (std::vector<RunTuple>{}));
  EXPECT_EQ(runs_of(segments, 18, 25), (std::vector<RunTuple>{{18, 2, false}, {20, 5, true}}));
}

TEST(SegmentRuns, CoverEveryElementOnceWhateverTheChunk) {
  const std::vector<Segment> segments = {{"a", {}, 3, 10, true}, {"empty", {}, 13, 0, true}, {"b", {}, 16, 31, false}};
  for (std::size_t chunk = 1; chunk < 60; ++chunk) {
    std::vector<int> seen(50);
    for (std::size_t begin = 0; begin < seen.size(); begin += chunk) {
      for (const auto& [first, numel, decay] : runs_of(segments, begin, std::min(begin + chunk, seen.size()))) {
        for (std::size_t i = first; i < first + numel; ++i) ++seen[i];
      }
    }
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const bool covered = (i >= 3 && i < 13) || (i >= 16 && i < 47);
      ASSERT_EQ(seen[i], covered ? 1 : 0) << "element " << i << ", chunk " << chunk;
    }
  }
}

TEST(SegmentRuns, CountIn64Bits) {
  const std::size_t huge = (std::size_t{1} << 40) + 5;
  const std::vector<Segment> segments = {{"a", {}, 7, huge, true}, {"b", {}, huge + 64, 9, false}};

  EXPECT_EQ(runs_of(segments, 0, 2 * huge), (std::vector<RunTuple>{{7, huge, true}, {huge + 64, 9, false}}));
  EXPECT_EQ(runs_of(segments, huge - 65536, huge), (std::vector<RunTuple>{{huge - 65536, 65536, true}}));
  EXPECT_EQ(runs_of(segments, (std::size_t{1} << 31) - 1, (std::size_t{1} << 31) + 1),
            (std::vector<RunTuple>{{(std::size_t{1} << 31) - 1, 2, true}}));
}

}  // namespace
}  // namespace strata::cpu_adam
