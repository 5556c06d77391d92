// Where groups begin, which elements they hold, and that indices need more than 32 bits.
#include "kernels/group.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/update_block8_body.h"
#include "kernels/update_body.h"

namespace strata::kernels {
namespace {

alignas(16) float floats[64];
alignas(16) std::uint16_t codes[64];

TEST(Groups, StartWhereEveryArrayIsAligned) {
  const GroupShape<4> shape = shape_of<4>(40, {{codes + 3, 2}, {floats + 3, 4}, {nullptr, 4}});

  EXPECT_TRUE(shape.aligned);
  EXPECT_EQ(shape.first_of(0), -3);
  EXPECT_EQ(shape.first_of(1), 1);
  EXPECT_EQ(shape.groups, 11);
  EXPECT_EQ(shape.members_from(-3), 0b1000u);
  EXPECT_EQ(shape.members_from(1), 0b1111u);
  EXPECT_EQ(shape.members_from(37), 0b0111u);
}

TEST(Groups, AreNotAlignedWhereArraysDisagree) {
  EXPECT_FALSE((shape_of<4>(40, {{codes + 3, 2}, {floats + 2, 4}}).aligned));
  EXPECT_FALSE((shape_of<8>(40, {{codes, 2}, {codes + 4, 2}}).aligned));
  EXPECT_TRUE((shape_of<4>(40, {{codes, 2}, {codes + 4, 2}}).aligned));
}

template <int N>
void expect_each_element_once() {
  for (std::int64_t numel = 0; numel < 40; ++numel) {
    for (std::size_t shift = 0; shift < 9; ++shift) {
      const GroupShape<N> shape = shape_of<N>(numel, {{codes + shift, 2}});
      std::vector<int> seen(static_cast<std::size_t>(numel));
      for (std::int64_t group = 0; group < shape.groups; ++group) {
        const unsigned members = shape.members_from(shape.first_of(group));
        for (int k = 0; k < N; ++k) {
          if (members >> k & 1u) ++seen.at(static_cast<std::size_t>(shape.first_of(group) + k));
        }
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(numel), 1)) << N << " x " << numel << " + " << shift;
    }
  }
}

TEST(Groups, HoldEachElementOnce) {
  expect_each_element_once<4>();
  expect_each_element_once<8>();
}

constexpr std::int64_t kFar = (std::int64_t{1} << 33) + 5;

TEST(Groups, ReachElementsBehind32Bits) {
  const GroupShape<4> shape = shape_of<4>(kFar, {{floats + 1, 4}});

  EXPECT_EQ(shape.groups, (std::int64_t{1} << 31) + 2);
  EXPECT_EQ(shape.first_of(shape.groups - 1), kFar - 2);
  EXPECT_EQ(shape.members_from(kFar - 4), 0b1111u);
  EXPECT_EQ(shape.members_from(kFar - 2), 0b0011u);
  EXPECT_EQ(shape.members_from(kFar), 0u);
}

// A run whose arrays begin so far before `element` that `element` is number kFar - 1.
UpdateRun run_up_to(float* element) {
  const auto start = reinterpret_cast<std::uintptr_t>(element) - sizeof(float) * static_cast<std::size_t>(kFar - 1);
  UpdateRun run;
  run.kind = OptimizerKind::Sgd;
  run.constants.negative_step_size = -1;
  run.constants.decay = 0;
  run.master = run.param = reinterpret_cast<void*>(start);
  run.grad = run.param;
  run.numel = kFar;
  run.intervals.count = 2;
  run.intervals.ends[0] = kFar - 1;
  run.intervals.treatments[0] = Treatment::Padding;
  run.intervals.ends[1] = kFar;
  run.intervals.treatments[1] = Treatment::Decay;
  return run;
}

// Of all that elements only the last is updated, by the thread that has the last group.
TEST(UpdateBody, UpdatesElementsBehind32Bits) {
  floats[40] = 3;
  floats[39] = floats[41] = 7;
  const UpdateBody<OwnMaster, Fp32Moments> body(run_up_to(floats + 40));

  body(body.shape.groups - 1, body.shape.groups);

  EXPECT_EQ(floats[40], 0);
  EXPECT_EQ(floats[39], 7);
  EXPECT_EQ(floats[41], 7);
}

TEST(UpdateBlock8Body, UpdatesElementsBehind32Bits) {
  static std::uint8_t moment[64];
  static float scale = 0;
  floats[40] = 3;
  UpdateRun run = run_up_to(floats + 40);
  run.kind = OptimizerKind::Lion;
  run.constants.one_minus_beta1 = run.constants.one_minus_beta2 = 1;
  run.constants.decay = 1;
  run.moments[0] =
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(moment + 40) - static_cast<std::size_t>(kFar - 1));
  const UpdateBlock8Body<OwnMaster> of_blocks(run);
  const std::int64_t last = of_blocks.blocks() - 1;
  run.scales[0] = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(&scale) -
                                           sizeof(float) * static_cast<std::size_t>(last));
  const UpdateBlock8Body<OwnMaster> body(run);

  run_block(body, last);

  EXPECT_EQ(last, kFar / 256);
  EXPECT_EQ(floats[40], 2);
  EXPECT_EQ(scale, 3);
  EXPECT_EQ(moment[39], 0);
  EXPECT_NE(moment[40], 0);
}

}  // namespace
}  // namespace strata::kernels
