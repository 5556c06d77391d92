#include "offload/piece_grid.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::offload {
namespace {

std::vector<std::uint64_t> firsts(const PieceGrid& grid) {
  std::vector<std::uint64_t> result;
  for (std::uint32_t p = 0; p < grid.pieces(); ++p) result.push_back(grid.range(p).first);
  return result;
}

TEST(PieceGrid, OnlyThePieceWithTheEndOfTheHostShareIsCut) {
  EXPECT_EQ(firsts(PieceGrid(950, 0, 300)), (std::vector<std::uint64_t>{0, 300, 600, 900}));
  EXPECT_EQ(firsts(PieceGrid(950, 300, 300)), (std::vector<std::uint64_t>{0, 300, 600, 900}));
  EXPECT_EQ(firsts(PieceGrid(950, 400, 300)), (std::vector<std::uint64_t>{0, 300, 400, 600, 900}));
  EXPECT_EQ(firsts(PieceGrid(950, 910, 300)), (std::vector<std::uint64_t>{0, 300, 600, 900, 910}));
  EXPECT_EQ(firsts(PieceGrid(950, 950, 300)), (std::vector<std::uint64_t>{0, 300, 600, 900}));
}

TEST(PieceGrid, PiecesCoverEveryElementOnceAndHaveOneHomeEach) {
  for (std::uint64_t numel = 1; numel <= 40; ++numel) {
    for (std::uint64_t host = 0; host <= numel; ++host) {
      for (const std::uint64_t full : {1, 3, 8, 50}) {
        SCOPED_TRACE(std::to_string(numel) + " " + std::to_string(host) + " " + std::to_string(full));
        const PieceGrid grid(numel, host, full);
        std::uint64_t next = 0;
        for (std::uint32_t p = 0; p < grid.pieces(); ++p) {
          const PieceRange range = grid.range(p);
          ASSERT_EQ(range.first, next);
          ASSERT_GT(range.numel, 0U);
          ASSERT_LE(range.numel, full);
          ASSERT_TRUE(range.first >= host || range.first + range.numel <= host);
          for (std::uint64_t e = range.first; e < range.first + range.numel; ++e) ASSERT_EQ(grid.at(e), p);
          next += range.numel;
        }
        ASSERT_EQ(next, numel);
      }
    }
  }
}

}  // namespace
}  // namespace strata::offload
