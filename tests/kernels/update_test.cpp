// Every update kernel, its grid run on the host, against the scalar loops of cpu_adam.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"
#include "cuda/cuda_optimizer.h"
#include "kernels/host_grids.h"
#include "kernels/special_values.h"
#include "kernels/update.h"
#include "support/optimizer_configs.h"
#include "support/optimizer_shard.h"
#include "support/test_seed.h"

namespace strata::kernels {
namespace {

using test::Shard;

constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};
std::vector<DType> param_types(const OptimizerConfig& config) {
  if (config.master == MasterEncoding::Remainder) return {DType::BF16};
  return {std::begin(kTypes), std::end(kTypes)};
}

// Segments with and without decay, some beside each other, some behind padding.
std::vector<Segment> random_segments(std::size_t numel, std::mt19937_64& random) {
  std::vector<Segment> segments;
  for (std::size_t at = random() % 3 == 0 ? random() % 20 : 0; at < numel;) {
    const std::size_t length = random() % 4 == 0 ? random() % 5 : random() % 200;
    segments.push_back({"", {}, at, std::min(length, numel - at), random() % 2 == 0});
    at += segments.back().numel + (random() % 2 == 0 ? random() % 40 : 0);
  }
  return segments;
}

class UpdateKernels : public ::testing::TestWithParam<OptimizerConfig> {
 protected:
  const OptimizerConfig& config() const { return GetParam(); }

  Shard shard(DType param, DType grad, std::size_t numel, std::span<const Segment> segments = {}) const {
    return Shard(config(), param, grad, numel, numel % 9, 1, segments);
  }
  // The same step on both: on a grid, and by the scalar loops.
  void step(const Shard& actual, const Shard& expected, std::span<const Segment> segments, std::uint64_t first = 0) {
    grids_.next();
    ShardViews views = actual.views(segments), definition = expected.views(segments);
    views.first_element = definition.first_element = first;
    optimizer_->step(test::ordinary_step(), views);
    definition_.step(test::ordinary_step(), definition).wait();
  }
  template <typename Fn>
  void for_each_type(Fn&& fn) const {
    for (const DType param : param_types(config())) {
      for (const DType grad : kTypes) fn(param, grad);
    }
  }

  std::unique_ptr<Parallel> parallel_ = make_thread_pool(1);
  cpu_adam::CpuOptimizer definition_{*parallel_, GetParam(), cpu_adam::Isa::Scalar};
  std::unique_ptr<ShardOptimizer> optimizer_ = cuda::make_cuda_optimizer(GetParam());
  test::HostGrids grids_;
};

TEST_P(UpdateKernels, EqualTheScalarLoopsForEveryLengthAlignmentAndType) {
  std::size_t offset = 0;
  for_each_type([&](DType param, DType grad) {
    for (std::size_t numel = 0; numel <= 600; ++numel) {
      if (numel > 36 && numel % 3 != offset % 3) continue;  // of the larger ones each combination takes a third
      SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel));
      const std::vector<Segment> segments = {test::whole(numel)};
      const Shard actual = shard(param, grad, numel), expected = shard(param, grad, numel);

      step(actual, expected, segments);

      ASSERT_TRUE(actual.same_bytes(expected));
      ASSERT_TRUE(actual.guards_intact());
    }
    ++offset;
  });
}

TEST_P(UpdateKernels, TreatEachSegmentAsItAsksAndLeavePaddingAlone) {
  const std::uint64_t seed = test::test_seed(7);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for_each_type([&](DType param, DType grad) {
    for (int round = 0; round < 12; ++round) {
      const std::size_t numel = random() % 3000;
      const std::vector<Segment> segments = random_segments(numel, random);
      SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel));
      const Shard actual = shard(param, grad, numel, segments), expected = shard(param, grad, numel, segments);
      // The index passes 2^32 inside most of the views.
      const std::uint64_t first = (std::uint64_t{5} << 40) + (std::uint64_t{1} << 32) - 256 * (random() % 12);

      step(actual, expected, segments, first);

      ASSERT_TRUE(actual.same_bytes(expected));
      ASSERT_TRUE(actual.guards_intact());
    }
  });
}

// Also where it holds something: a whole block of it, and the ends of others.
TEST_P(UpdateKernels, LeavePaddingAloneThatIsNotZero) {
  const std::vector<Segment> segments = {{"a", {}, 3, 100, true}, {"b", {}, 700, 400, false}, {"c", {}, 2000, 5, true}};
  for_each_type([&](DType param, DType grad) {
    SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)));
    const Shard actual = shard(param, grad, 2500), expected = shard(param, grad, 2500);

    step(actual, expected, segments);

    ASSERT_TRUE(actual.same_bytes(expected));
  });
}

TEST_P(UpdateKernels, TakeSpecialValuesAsTheScalarLoopsDo) {
  const std::uint64_t seed = test::test_seed(8);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for_each_type([&](DType param, DType grad) {
    for (int round = 0; round < 4; ++round) {
      SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)));
      constexpr std::size_t numel = 2100;
      const std::vector<Segment> segments = {test::whole(numel)};
      const Shard actual = shard(param, grad, numel), expected = shard(param, grad, numel);
      const ShardViews to = actual.views(segments), copy = expected.views(segments);
      std::vector<std::pair<TensorSpan, TensorSpan>> arrays = {{to.param, copy.param}, {to.grad, copy.grad}};
      for (std::size_t i = 0; i < to.states.size(); ++i) arrays.emplace_back(to.states[i], copy.states[i]);
      for (const auto& [span, other] : arrays) {
        // Round 0 leaves some 8-bit blocks without anything special.
        for (std::size_t i = 0; i < span.numel; i += 1 + random() % (round == 0 ? 900 : 5)) {
          if (test::is_float(span.dtype)) test::encode(span, i, test::special_value(random));
        }
        std::memcpy(other.data, span.data, span.bytes());
      }

      step(actual, expected, segments);

      for (const auto& [span, other] : arrays) ASSERT_TRUE(test::same_values(span, other));
      ASSERT_TRUE(actual.guards_intact());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, UpdateKernels, ::testing::ValuesIn(test::optimizer_configs()),
                         [](const auto& instance) { return test::text_of(instance.param); });

TEST(UpdateEntryPoints, RefuseRunsThatNoKernelTakes) {
  UpdateRun run;
  run.intervals.count = 1;
  run.numel = run.intervals.ends[0] = 1;
  UpdateRun wrong_grad = run, wrong_storage = run;
  wrong_grad.grad_type = 3;
  wrong_storage.storage = static_cast<Storage>(9);

  for (const auto update : {&strata_cuda_update_fp32, &strata_cuda_update_bf16, &strata_cuda_update_block8}) {
    EXPECT_EQ(update(&wrong_grad, nullptr), kInvalidValue);
    EXPECT_EQ(update(&wrong_storage, nullptr), kInvalidValue);
    run.numel = 0;
    EXPECT_EQ(update(&run, nullptr), kSuccess);
  }
}

}  // namespace
}  // namespace strata::kernels
