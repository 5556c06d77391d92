#include "models/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace strata::models {
namespace {

// The definition, in double: query t sees keys t - window < s <= t (all s <= t when window is 0).
double attention_at(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window, std::int64_t t,
                    std::int64_t feature) {
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, t - window + 1) : 0;
  double weight_sum = 0, value_sum = 0;
  for (std::int64_t s = first; s <= t; ++s) {
    const double score = (q[t].to(at::kDouble) * k[s].to(at::kDouble)).sum().item().toDouble();
    const double weight = std::exp(score / std::sqrt(static_cast<double>(q.size(-1))));
    weight_sum += weight;
    value_sum += weight * v[s][feature].item().toDouble();
  }
  return value_sum / weight_sum;
}

void expect_definition(std::int64_t window) {
  const at::Tensor q = at::randn({2, 4, 9, 6});
  const at::Tensor k = at::randn({2, 2, 9, 6});
  const at::Tensor v = at::randn({2, 2, 9, 6});
  const at::Tensor out = causal_attention(q, k, v, window);
  ASSERT_EQ(out.sizes(), (std::vector<std::int64_t>{2, 9, 24}));
  for (std::int64_t head = 0; head < 4; ++head) {
    for (std::int64_t t = 0; t < 9; ++t) {
      const double expected = attention_at(q[1][head], k[1][head / 2], v[1][head / 2], window, t, 3);
      EXPECT_NEAR(out[1][t][head * 6 + 3].item().toDouble(), expected, 1e-5) << "head " << head << ", token " << t;
    }
  }
}

TEST(Attention, FullCausalMatchesTheDefinitionWithSharedKeyHeads) {
  expect_definition(0);
}
TEST(Attention, SlidingWindowMatchesTheDefinition) {
  expect_definition(4);
}
TEST(Attention, WindowOfOneSeesOnlyItself) {
  expect_definition(1);
}
TEST(Attention, WindowLongerThanTheTextIsFull) {
  expect_definition(100);
}

TEST(Attention, MaskIsZeroInsideTheWindowAndMinusInfinityOutside) {
  const at::Tensor mask = sliding_window_mask(7, 3, at::TensorOptions(at::kFloat));
  for (std::int64_t t = 0; t < 7; ++t) {
    for (std::int64_t s = 0; s < 7; ++s) {
      const bool visible = s <= t && s > t - 3;
      EXPECT_EQ(mask[t][s].item().toDouble(), visible ? 0.0 : -HUGE_VAL) << t << ", " << s;
    }
  }
}

TEST(Attention, PaddingOnTheRightDoesNotChangeEarlierTokens) {
  const at::Tensor q = at::randn({1, 2, 12, 4});
  at::Tensor k = at::randn({1, 2, 12, 4});
  at::Tensor v = at::randn({1, 2, 12, 4});
  const at::Tensor before = causal_attention(q, k, v, 0).narrow(1, 0, 8).clone();
  k.narrow(2, 8, 4).fill_(50);
  v.narrow(2, 8, 4).fill_(-1000);
  EXPECT_TRUE(causal_attention(q, k, v, 0).narrow(1, 0, 8).equal(before));
}

}  // namespace
}  // namespace strata::models
