// What every AdamW behind the ShardOptimizer port must do. A new implementation writes about 25 lines: it instantiates
// ShardOptimizerContract with a ShardOptimizerCase (tests/cpu_adam/cpu_adamw_contract_test.cpp is the example).
// Views lie in host memory; an implementation for a device copies in and out in its `make`.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/adam_math.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "support/guarded_array.h"

namespace strata::test {

struct ShardOptimizerCase {
  std::string name;
  std::function<std::unique_ptr<ShardOptimizer>(Parallel&)> make;
};

inline float decoded(TensorSpan span, std::size_t i) {
  if (span.dtype == DType::F32) return span.as<float>()[i];
  const std::uint16_t bits = span.as<std::uint16_t>()[i];
  return span.dtype == DType::BF16 ? bf16_to_float(bits) : half_to_float(bits);
}

inline void encode(TensorSpan span, std::size_t i, float value) {
  if (span.dtype == DType::F32) span.as<float>()[i] = value;
  if (span.dtype == DType::BF16) span.as<std::uint16_t>()[i] = float_to_bf16(value);
  if (span.dtype == DType::F16) span.as<std::uint16_t>()[i] = float_to_half(value);
}

// A shard with gradient and states, random but plausible, `shift` elements away from alignment, guards around every
// array.
class Shard {
 public:
  Shard(DType param, DType grad, std::size_t numel, std::size_t shift = 0, unsigned seed = 1) {
    for (const DType dtype : {param, grad, DType::F32, DType::F32, DType::F32})
      arrays_.emplace_back(dtype, numel, shift);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < numel; ++i) {
      const float master = 0.05f * normal(random);
      encode(arrays_[0].span(), i, master);
      encode(arrays_[1].span(), i, normal(random));
      arrays_[2].span().as<float>()[i] = master;
      arrays_[3].span().as<float>()[i] = 0.1f * normal(random);
      arrays_[4].span().as<float>()[i] = std::abs(0.01f * normal(random));
    }
    for (std::size_t i = param == DType::F32 ? 3 : 2; i < 5; ++i) states_.push_back(arrays_[i].span());
  }

  TensorSpan param() const { return arrays_[0].span(); }
  TensorSpan grad() const { return arrays_[1].span(); }
  TensorSpan master() const { return param().dtype == DType::F32 ? param() : arrays_[2].span(); }
  TensorSpan exp_avg() const { return arrays_[3].span(); }
  TensorSpan exp_avg_sq() const { return arrays_[4].span(); }

  ShardViews views(std::span<const Segment> segments) const { return {param(), grad(), states_, segments}; }
  bool guards_intact() const {
    for (const GuardedArray& array : arrays_) {
      if (!array.guards_intact()) return false;
    }
    return true;
  }
  bool same_bytes(const Shard& other) const {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (!arrays_[i].same_elements(other.arrays_[i])) return false;
    }
    return true;
  }

 private:
  std::vector<GuardedArray> arrays_;
  std::vector<TensorSpan> states_;
};

// The definition, element by element, from core/adam_math.h.
inline void define_step(const StepContext& context, const Shard& shard, std::span<const Segment> segments) {
  const AdamConstants constants = adam_constants(context);
  for (const Segment& segment : segments) {
    for (std::size_t i = segment.offset; i < segment.offset + segment.numel; ++i) {
      auto& master = shard.master().as<float>()[i];
      auto& exp_avg = shard.exp_avg().as<float>()[i];
      auto& exp_avg_sq = shard.exp_avg_sq().as<float>()[i];
      const AdamElement updated = adam_update(constants, {master, exp_avg, exp_avg_sq}, decoded(shard.grad(), i),
                                              segment.decay ? constants.decay_factor : 1.0f);
      master = updated.master;
      exp_avg = updated.exp_avg;
      exp_avg_sq = updated.exp_avg_sq;
      encode(shard.param(), i, updated.master);
    }
  }
}

inline StepContext ordinary_step() {
  return {.step = 3, .learning_rate = 1e-3, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.37f};
}

inline Segment whole(std::size_t numel) {
  return {.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true};
}

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
