// What every optimizer behind the ShardOptimizer port must do, for every OptimizerConfig it takes. A new implementation
// writes about 25 lines: it instantiates ShardOptimizerContract with ShardOptimizerCases
// (tests/cpu_adam/cpu_optimizer_contract_test.cpp is the example). Views lie in host memory; an implementation for a
// device copies in and out in its `make`.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "support/optimizer_shard.h"

namespace strata::test {

struct ShardOptimizerCase {
  std::string name;
  OptimizerConfig config;
  std::function<std::unique_ptr<ShardOptimizer>(Parallel&)> make;
};

class ShardOptimizerContract : public ::testing::TestWithParam<ShardOptimizerCase> {
 protected:
  const OptimizerConfig& config() const { return GetParam().config; }
  bool has_remainder() const { return config().master == MasterEncoding::Remainder; }
  // Types of parameters that the configuration takes.
  std::vector<DType> param_types() const {
    if (has_remainder()) return {DType::BF16};
    return {DType::F32, DType::BF16, DType::F16};
  }
  // The whole of `shard` in one call.
  void step(const Shard& shard, std::span<const Segment> segments, std::uint64_t first_element = 0) {
    ShardViews views = shard.views(segments);
    views.first_element = first_element;
    optimizer_->step(ordinary_step(), views).wait();
  }

  std::unique_ptr<Parallel> parallel_ = make_thread_pool(2);
  std::unique_ptr<ShardOptimizer> optimizer_ = GetParam().make(*parallel_);
};

TEST_P(ShardOptimizerContract, EqualsTheDefinitionForEveryLengthAlignmentAndType) {
  for (const DType param : param_types()) {
    for (const DType grad : {DType::F32, DType::BF16, DType::F16}) {
      for (std::size_t numel = 0; numel <= 300; numel += numel < 70 ? 1 : 23) {
        SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel));
        const std::vector<Segment> segments = {whole(numel)};
        const Shard shard(config(), param, grad, numel, numel % 5);
        const Shard expected(config(), param, grad, numel, numel % 5);

        step(shard, segments);

        define_step(ordinary_step(), expected, segments);
        ASSERT_TRUE(shard.same_bytes(expected));
        ASSERT_TRUE(shard.guards_intact());
      }
    }
  }
}

// Segments start and end inside blocks of 8-bit states.
TEST_P(ShardOptimizerContract, DecaysOnlySegmentsThatAskAndLeavesPaddingAlone) {
  const std::vector<Segment> segments = {{"weight", {}, 3, 70001, true},
                                         {"norm", {}, 70010, 17, false},
                                         {"empty", {}, 70030, 0, true},
                                         {"last", {}, 80000, 9, true}};
  const Shard shard(config(), DType::BF16, DType::BF16, 80021, 0, 1, segments);
  const Shard expected(config(), DType::BF16, DType::BF16, 80021, 0, 1, segments);

  step(shard, segments);

  define_step(ordinary_step(), expected, segments);
  EXPECT_TRUE(shard.same_bytes(expected));
}

TEST_P(ShardOptimizerContract, ThreadCountDoesNotChangeBits) {
  const std::vector<Segment> segments = {{"weight", {}, 0, 100000, true}, {"norm", {}, 100005, 80000, false}};
  const Shard expected(config(), DType::BF16, DType::F32, 190005, 0, 1, segments);
  define_step(ordinary_step(), expected, segments);
  for (const std::size_t threads : {1u, 3u, 7u}) {
    SCOPED_TRACE(threads);
    const auto parallel = make_thread_pool(threads);
    const Shard shard(config(), DType::BF16, DType::F32, 190005, 0, 1, segments);

    GetParam().make(*parallel)->step(ordinary_step(), shard.views(segments)).wait();

    EXPECT_TRUE(shard.same_bytes(expected));
  }
}

// A view is a run of a shard anywhere in the model, also where the index passes 2^32.
TEST_P(ShardOptimizerContract, ChunksDoNotChangeBits) {
  constexpr std::size_t kNumel = 4096 + 77;
  constexpr std::uint64_t kFirst = (std::uint64_t{3} << 40) + (std::uint64_t{1} << 32) - 1024;
  const std::vector<Segment> segments = {whole(kNumel)};
  const Shard expected(config(), DType::BF16, DType::BF16, kNumel);
  define_step(ordinary_step(), expected, segments, kFirst);
  const Shard at_once(config(), DType::BF16, DType::BF16, kNumel);
  const Shard chunked(config(), DType::BF16, DType::BF16, kNumel);

  step(at_once, segments, kFirst);
  for (std::size_t first = 0; first < kNumel; first += 768) {
    const std::size_t numel = std::min<std::size_t>(768, kNumel - first);
    const ShardViews all = chunked.views(segments);
    const std::vector<StateSpec> specs = state_specs(config(), DType::BF16);
    std::vector<TensorSpan> states;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      states.push_back(all.states[i].subspan(first / specs[i].elements_per_value, specs[i].values_for(numel)));
    }
    const std::vector<Segment> part = {whole(numel)};
    optimizer_
        ->step(ordinary_step(),
               {all.param.subspan(first, numel), all.grad.subspan(first, numel), states, part, kFirst + first})
        .wait();
  }

  EXPECT_TRUE(at_once.same_bytes(expected));
  EXPECT_TRUE(chunked.same_bytes(expected));
}

TEST_P(ShardOptimizerContract, AStepDependsOnItsNumberAndNotOnEarlierCalls) {
  const std::vector<Segment> segments = {whole(100)};
  StepContext late = ordinary_step();
  late.step = 1000;
  const Shard other(config(), DType::BF16, DType::BF16, 100, 0, 2);
  const Shard shard(config(), DType::BF16, DType::BF16, 100);
  const Shard expected(config(), DType::BF16, DType::BF16, 100);
  optimizer_->step(ordinary_step(), other.views(segments)).wait();

  optimizer_->step(late, shard.views(segments)).wait();

  define_step(late, expected, segments);
  EXPECT_TRUE(shard.same_bytes(expected));
}

TEST_P(ShardOptimizerContract, KeepsTheStatesOfItsConfiguration) {
  for (const DType param : param_types()) {
    const std::vector<StateSpec> expected = state_specs(config(), param), actual = optimizer_->states(param);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].name, expected[i].name);
      EXPECT_EQ(actual[i].dtype, expected[i].dtype);
      EXPECT_EQ(actual[i].elements_per_value, expected[i].elements_per_value);
    }
    EXPECT_EQ(optimizer_->reads_param(param), param == DType::F32 || has_remainder());
  }
}

TEST_P(ShardOptimizerContract, RefusesViewsThatDoNotFit) {
  const Shard shard(config(), DType::BF16, DType::BF16, 10);
  const std::vector<Segment> overlapping = {{"a", {}, 0, 6, true}, {"b", {}, 5, 2, true}};
  const std::vector<Segment> too_long = {whole(11)};
  const std::vector<Segment> segments = {whole(10)};
  ShardViews short_grad = shard.views(segments);
  short_grad.grad.numel = 9;
  ShardViews no_master = shard.views(segments);
  no_master.states = no_master.states.subspan(1);
  ShardViews inside_a_block = shard.views(segments);
  inside_a_block.first_element = 128;
  StepContext step_zero = ordinary_step();
  step_zero.step = 0;

  EXPECT_THROW(optimizer_->step(ordinary_step(), shard.views(overlapping)), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), shard.views(too_long)), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), short_grad), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), no_master), ContractViolation);
  EXPECT_THROW(optimizer_->step(step_zero, shard.views(segments)), ContractViolation);
  if (config().moments == MomentEncoding::Block8 && config().kind != OptimizerKind::Sgd) {
    EXPECT_THROW(optimizer_->step(ordinary_step(), inside_a_block), ContractViolation);
  }
}

}  // namespace strata::test
