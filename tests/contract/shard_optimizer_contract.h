// What every AdamW behind the ShardOptimizer port must do. A new implementation writes about 25 lines: it instantiates
// ShardOptimizerContract with a ShardOptimizerCase (tests/cpu_adam/cpu_adamw_contract_test.cpp is the example).
// Views lie in host memory; an implementation for a device copies in and out in its `make`.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "support/adam_shard.h"

namespace strata::test {

struct ShardOptimizerCase {
  std::string name;
  std::function<std::unique_ptr<ShardOptimizer>(Parallel&)> make;
};

class ShardOptimizerContract : public ::testing::TestWithParam<ShardOptimizerCase> {
 protected:
  std::unique_ptr<Parallel> parallel_ = make_thread_pool(2);
  std::unique_ptr<ShardOptimizer> optimizer_ = GetParam().make(*parallel_);
};

TEST_P(ShardOptimizerContract, EqualsTheDefinitionForEveryLengthAlignmentAndType) {
  for (const DType param : {DType::F32, DType::BF16, DType::F16}) {
    for (const DType grad : {DType::F32, DType::BF16, DType::F16}) {
      for (std::size_t numel = 0; numel <= 130; ++numel) {
        SCOPED_TRACE(std::string(name_of(param)) + " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel));
        const std::vector<Segment> segments = {whole(numel)};
        const Shard shard(param, grad, numel, numel % 5);
        const Shard expected(param, grad, numel, numel % 5);

        optimizer_->step(ordinary_step(), shard.views(segments)).wait();

        define_step(ordinary_step(), expected, segments);
        ASSERT_TRUE(shard.same_bytes(expected));
        ASSERT_TRUE(shard.guards_intact());
      }
    }
  }
}

TEST_P(ShardOptimizerContract, DecaysOnlySegmentsThatAskAndLeavesPaddingAlone) {
  const std::vector<Segment> segments = {{"weight", {}, 3, 70001, true},
                                         {"norm", {}, 70010, 17, false},
                                         {"empty", {}, 70030, 0, true},
                                         {"last", {}, 80000, 9, true}};
  const Shard shard(DType::BF16, DType::BF16, 80021);
  const Shard expected(DType::BF16, DType::BF16, 80021);

  optimizer_->step(ordinary_step(), shard.views(segments)).wait();

  define_step(ordinary_step(), expected, segments);
  EXPECT_TRUE(shard.same_bytes(expected));
}

TEST_P(ShardOptimizerContract, ThreadCountDoesNotChangeBits) {
  const std::vector<Segment> segments = {{"weight", {}, 0, 300000, true}, {"norm", {}, 300005, 200000, false}};
  const Shard expected(DType::BF16, DType::F32, 500005);
  define_step(ordinary_step(), expected, segments);
  for (const std::size_t threads : {1u, 2u, 3u, 7u}) {
    SCOPED_TRACE(threads);
    const auto parallel = make_thread_pool(threads);
    const Shard shard(DType::BF16, DType::F32, 500005);

    GetParam().make(*parallel)->step(ordinary_step(), shard.views(segments)).wait();

    EXPECT_TRUE(shard.same_bytes(expected));
  }
}

TEST_P(ShardOptimizerContract, AStepDependsOnItsNumberAndNotOnEarlierCalls) {
  const std::vector<Segment> segments = {whole(100)};
  StepContext late = ordinary_step();
  late.step = 1000;
  const Shard other(DType::BF16, DType::BF16, 100, 0, 2);
  const Shard shard(DType::BF16, DType::BF16, 100);
  const Shard expected(DType::BF16, DType::BF16, 100);
  optimizer_->step(ordinary_step(), other.views(segments)).wait();

  optimizer_->step(late, shard.views(segments)).wait();

  GetParam().make(*parallel_)->step(late, expected.views(segments)).wait();
  EXPECT_TRUE(shard.same_bytes(expected));
}

TEST_P(ShardOptimizerContract, KeepsAMasterForSixteenBitParametersOnly) {
  EXPECT_EQ(optimizer_->states(DType::F32).size(), 2u);
  EXPECT_EQ(optimizer_->states(DType::F32)[0].name, "exp_avg");
  EXPECT_EQ(optimizer_->states(DType::BF16).size(), 3u);
  EXPECT_EQ(optimizer_->states(DType::F16)[0].name, "master");
}

TEST_P(ShardOptimizerContract, RefusesViewsThatDoNotFit) {
  const Shard shard(DType::BF16, DType::BF16, 10);
  const std::vector<Segment> overlapping = {{"a", {}, 0, 6, true}, {"b", {}, 5, 2, true}};
  const std::vector<Segment> too_long = {whole(11)};
  const std::vector<Segment> segments = {whole(10)};
  ShardViews short_grad = shard.views(segments);
  short_grad.grad.numel = 9;
  ShardViews no_master = shard.views(segments);
  no_master.states = no_master.states.last(2);
  StepContext step_zero = ordinary_step();
  step_zero.step = 0;

  EXPECT_THROW(optimizer_->step(ordinary_step(), shard.views(overlapping)), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), shard.views(too_long)), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), short_grad), ContractViolation);
  EXPECT_THROW(optimizer_->step(ordinary_step(), no_master), ContractViolation);
  EXPECT_THROW(optimizer_->step(step_zero, shard.views(segments)), ContractViolation);
}

}  // namespace strata::test
