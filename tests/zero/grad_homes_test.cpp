#include "zero/grad_homes.h"

#include <gtest/gtest.h>

#include <set>

#include "support/toy_compute.h"

namespace strata::zero {
namespace {

using offload::Access;
using test::ToyCompute;

std::vector<GradArrival> in_order(const std::vector<Visit>& visits, std::size_t groups) {
  std::vector<GradArrival> all;
  for (const auto& after_visit : grad_arrivals(visits, groups)) {
    all.insert(all.end(), after_visit.begin(), after_visit.end());
  }
  return all;
}

Visit backward(std::vector<std::size_t> groups, std::size_t layer) {
  return {0, layer, Direction::Backward, groups, groups};
}

TEST(GradArrivals, OneMicroBatchWritesEveryGradientOnceInTheOrderOfBackward) {
  const ToyCompute compute(2, DType::F32, 1, ToyCompute::Head::Own);
  const std::size_t groups = compute.layouts().size();
  const std::vector<GradArrival> arrivals = in_order(train_visits(compute, 1), groups);
  ASSERT_EQ(arrivals.size(), groups);
  std::set<std::size_t> seen;
  for (const GradArrival& arrival : arrivals) {
    EXPECT_EQ(arrival.access, Access::Write);
    seen.insert(arrival.group);
  }
  EXPECT_EQ(seen.size(), groups);
}

TEST(GradArrivals, LaterMicroBatchesAreAddedButVerticalOnesArriveAsOneSum) {
  const std::vector<Visit> horizontal = {backward({0}, 0), backward({0}, 0), backward({0}, 0)};
  // One layer after itself is one sum.
  EXPECT_EQ(in_order(horizontal, 1), (std::vector<GradArrival>{{0, Access::Write}}));
  const std::vector<Visit> apart = {backward({1}, 1), backward({0}, 0), backward({1}, 1), backward({0}, 0)};
  EXPECT_EQ(in_order(apart, 2),
            (std::vector<GradArrival>{
                {1, Access::Write}, {0, Access::Write}, {1, Access::ReadWrite}, {0, Access::ReadWrite}}));
}

TEST(GradHomes, TakeTurnsInTheLargestOfTheirUsers) {
  const std::vector<Visit> visits = {backward({4}, 4), backward({3}, 3), backward({2}, 2), backward({1}, 1),
                                     backward({0}, 0)};
  // Turns: 4, 2, 0 and 3, 1.
  EXPECT_EQ(grad_homes_in_turn(visits, {50, 10, 60, 20, 30}), (std::vector<std::size_t>{2, 3, 2, 3, 2}));
}

TEST(GradHomes, AGradientThatArrivesTwiceHasItsOwn) {
  const std::vector<Visit> visits = {backward({0, 3}, 3), backward({2}, 2), backward({1}, 1), backward({0}, 0)};
  const std::vector<std::size_t> homes = grad_homes_in_turn(visits, {1, 1, 1, 1});
  EXPECT_EQ(homes[0], 0U);
  EXPECT_EQ(homes, (std::vector<std::size_t>{0, 3, 2, 3})) << "3 and 1 take turns, 2 is alone in its turn";
}

TEST(GradHomes, AGroupThatIsNeededLaterIsUpdatedLaterAndHasItsOwn) {
  const std::vector<Visit> visits = {{0, 3, Direction::Backward, {3}, {3}},
                                     {0, 2, Direction::Backward, {2}, {2}},
                                     {0, 1, Direction::Backward, {1, 3}, {1}},
                                     {0, 0, Direction::Backward, {0}, {0}}};
  const std::vector<std::size_t> homes = grad_homes_in_turn(visits, {1, 1, 1, 1});
  for (std::size_t g = 0; g < 3; ++g) EXPECT_NE(homes[g], 3U) << "group " << g << " would overwrite what is read later";
  EXPECT_EQ(homes[3], 3U);
}

TEST(GradHomes, GradientsOfOneVisitNeverShareOne) {
  const std::vector<Visit> visits = {backward({0, 1, 2}, 1), backward({3}, 0)};
  const std::vector<std::size_t> homes = grad_homes_in_turn(visits, {1, 1, 1, 1});
  EXPECT_EQ((std::set<std::size_t>{homes[0], homes[1], homes[2]}.size()), 3U);
}

}  // namespace
}  // namespace strata::zero
