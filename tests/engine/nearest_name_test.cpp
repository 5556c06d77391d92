#include "engine/nearest_name.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

namespace strata::engine {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"learning_rate", "warmup_ratio", "seed",
                                                    "strata.placement.optimizer"};

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("abc", "abxc"), 1u);
  EXPECT_EQ(edit_distance("abc", "ac"), 1u);
  EXPECT_EQ(edit_distance("abc", "axc"), 1u);
  EXPECT_EQ(edit_distance("abc", "bac"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(NearestName, FindsASwappedLetter) {
  EXPECT_EQ(nearest_name("leraning_rate", kNames), "learning_rate");
}

TEST(NearestName, FindsANestedNameByItsLastPart) {
  EXPECT_EQ(nearest_name("optimiser", kNames), "strata.placement.optimizer");
}

TEST(NearestName, IsEmptyWhereNothingIsClose) {
  EXPECT_EQ(nearest_name("tokenizer", kNames), "");
}

TEST(NearestName, ShortNamesMayDifferByTwo) {
  EXPECT_EQ(nearest_name("sede", kNames), "seed");
  EXPECT_EQ(nearest_name("abcd", kNames), "");
}

}  // namespace
}  // namespace strata::engine
