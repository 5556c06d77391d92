// PlainAdam: AdamW one element after the other, for tests of the code that pages its states.
#pragma once

#include <cmath>
#include <vector>

#include "core/shard_optimizer.h"
#include "support/plain_math.h"

namespace strata::test {

// States: master (16-bit parameters only), exp_avg, exp_avg_sq. Elements outside the segments stay as they are.
// Stateless, so safe on any thread.
class PlainAdam final : public ShardOptimizer {
 public:
  std::vector<StateSpec> states(DType param) const override {
    std::vector<StateSpec> specs;
    if (param != DType::F32) specs.push_back({"master", DType::F32});
    specs.push_back({"exp_avg", DType::F32});
    specs.push_back({"exp_avg_sq", DType::F32});
    return specs;
  }

  Event step(const StepContext& context, const ShardViews& views) override {
    const bool has_master = views.param.dtype != DType::F32;
    const TensorSpan master = has_master ? views.states[0] : views.param;
    const TensorSpan exp_avg = views.states[has_master ? 1 : 0];
    const TensorSpan exp_avg_sq = views.states[has_master ? 2 : 1];
    const double correction1 = 1 - std::pow(context.beta1, static_cast<double>(context.step));
    const double correction2 = 1 - std::pow(context.beta2, static_cast<double>(context.step));
    for (const Segment& segment : views.segments) {
      for (std::size_t i = segment.offset; i < segment.offset + segment.numel; ++i) {
        const double g = static_cast<double>(load_element(views.grad, i)) * static_cast<double>(context.grad_scale);
        const double m = context.beta1 * load_element(exp_avg, i) + (1 - context.beta1) * g;
        const double v = context.beta2 * load_element(exp_avg_sq, i) + (1 - context.beta2) * g * g;
        double w = load_element(master, i);
        if (segment.decay) w *= 1 - context.learning_rate * context.weight_decay;
        w -= context.learning_rate * (m / correction1) / (std::sqrt(v / correction2) + context.epsilon);
        store_element(exp_avg, i, static_cast<float>(m));
        store_element(exp_avg_sq, i, static_cast<float>(v));
        store_element(master, i, static_cast<float>(w));
        if (has_master) store_element(views.param, i, static_cast<float>(w));
      }
    }
    return Event();
  }
};

}  // namespace strata::test
