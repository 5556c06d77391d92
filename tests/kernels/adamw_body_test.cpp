// The CUDA kernel's body, compiled for the host, against the scalar definition. What this cannot show: the launch
// itself, device arithmetic, and 128-bit accesses as the hardware performs them.
#include "kernels/adamw_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "support/optimizer_shard.h"

namespace strata::kernels {
namespace {

using test::Shard;

AdamwRun run_of(const Shard& shard, float decay_factor) {
  return {shard.param().data,
          shard.grad().data,
          shard.master().as<float>(),
          shard.exp_avg().as<float>(),
          shard.exp_avg_sq().as<float>(),
          static_cast<std::int64_t>(shard.param().numel),
          decay_factor};
}

// Runs the threads of a small grid in a random order.
template <typename Param, typename Grad>
void launch_on_host(const UpdateConstants& constants, const AdamwRun& run, std::mt19937& random) {
  std::vector<std::int64_t> threads(1 + random() % 40);
  std::iota(threads.begin(), threads.end(), 0);
  std::shuffle(threads.begin(), threads.end(), random);
  for (const std::int64_t thread : threads) {
    adamw_thread<Param, Grad>(constants, run, shape_of<Param, Grad>(run), thread,
                              static_cast<std::int64_t>(threads.size()));
  }
}

template <typename Param, typename Grad>
void expect_definition(DType param, DType grad) {
  std::mt19937 random(5);
  const StepContext context = test::ordinary_step();
  const UpdateConstants constants = update_constants(OptimizerKind::AdamW, context);
  for (std::size_t numel = 0; numel <= 260; ++numel) {
    const std::size_t shift = numel % 11;
    SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel));
    const Shard shard(param, grad, numel, shift), expected(param, grad, numel, shift);
    const std::vector<Segment> segments = {test::whole(numel)};

    launch_on_host<Param, Grad>(constants, run_of(shard, constants.decay), random);

    test::define_step(context, expected, segments);
    ASSERT_TRUE(shard.same_bytes(expected));
    ASSERT_TRUE(shard.guards_intact());
  }
}

TEST(AdamwBody, EqualsTheDefinitionForBf16Parameters) {
  expect_definition<encoding::Bf16, encoding::Bf16>(DType::BF16, DType::BF16);
  expect_definition<encoding::Bf16, encoding::F32>(DType::BF16, DType::F32);
}

TEST(AdamwBody, EqualsTheDefinitionForF16Parameters) {
  expect_definition<encoding::F16, encoding::F16>(DType::F16, DType::F16);
  expect_definition<encoding::F16, encoding::F32>(DType::F16, DType::F32);
}

TEST(AdamwBody, EqualsTheDefinitionForF32Parameters) {
  expect_definition<encoding::F32, encoding::F32>(DType::F32, DType::F32);
}

TEST(AdamwBody, GroupsStartWhereEveryArrayIsAligned) {
  alignas(16) static float states[64];
  alignas(16) static std::uint16_t codes[64];
  AdamwRun run = {codes + 3, codes + 3, states + 3, states + 3, states + 3, 40, 1.0f};

  const RunShape shape = shape_of<encoding::Bf16, encoding::Bf16>(run);

  EXPECT_EQ(shape.head, 5);
  EXPECT_EQ(shape.groups, 4);
  run.grad = codes + 4;
  EXPECT_EQ((shape_of<encoding::Bf16, encoding::Bf16>(run).groups), 0);
}

}  // namespace
}  // namespace strata::kernels
