#include "models/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

namespace strata::models {
namespace {

using Want = zero::LossLayer::Want;

// N = 11 positions, H = 6, V = 13; positions 3 to 7 carry no label, so with chunks of 2 two chunks are skipped.
struct Case {
  at::Tensor hidden = at::randn({11, 6});
  at::Tensor weight = at::randn({13, 6});
  at::Tensor labels = at::randint(13, {11}, at::TensorOptions(at::kLong));
  Case() { labels.narrow(0, 3, 5).fill_(kIgnoredLabel); }
};

double plain_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  const at::Tensor logits = at::mm(hidden, weight.t());
  const at::Tensor losses = logits.logsumexp(1) - logits.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  return losses.masked_fill(labels.eq(kIgnoredLabel), 0).sum().item().toDouble();
}

// Central differences of the definition in double.
at::Tensor numeric_gradient(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                            at::Tensor& moved) {
  constexpr double kStep = 1e-5;
  at::Tensor gradient = at::full(moved.sizes(), 0, at::TensorOptions(at::kDouble));
  for (std::int64_t i = 0; i < moved.numel(); ++i) {
    double* value = moved.mutable_data_ptr<double>() + i;
    const double centre = *value;
    *value = centre + kStep;
    const double above = plain_loss(hidden, weight, labels);
    *value = centre - kStep;
    const double below = plain_loss(hidden, weight, labels);
    *value = centre;
    gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item().toDouble();
}

TEST(CrossEntropy, LossIsTheSumOverLabelledPositions) {
  const Case c;
  const CrossEntropy result = chunked_cross_entropy(c.hidden, c.weight, c.labels, 4, Want::Loss);
  EXPECT_EQ(result.tokens, 6);
  EXPECT_NEAR(result.loss_sum, plain_loss(c.hidden.to(at::kDouble), c.weight.to(at::kDouble), c.labels), 1e-5);
}

TEST(CrossEntropy, GradientsAgreeWithFiniteDifferencesOfTheSum) {
  const Case c;
  const CrossEntropy result = chunked_cross_entropy(c.hidden, c.weight, c.labels, 4, Want::LossAndGrads);
  at::Tensor hidden = c.hidden.to(at::kDouble);
  at::Tensor weight = c.weight.to(at::kDouble);
  EXPECT_LT(largest_difference(result.grad_hidden, numeric_gradient(hidden, weight, c.labels, hidden)), 2e-6);
  EXPECT_LT(largest_difference(result.grad_weight, numeric_gradient(hidden, weight, c.labels, weight)), 2e-6);
}

TEST(CrossEntropy, ChunkSizeChangesTheResultByRoundingOnly) {
  const Case c;
  const CrossEntropy whole = chunked_cross_entropy(c.hidden, c.weight, c.labels, 100, Want::LossAndGrads);
  for (const std::int64_t chunk : {1, 2, 5, 11}) {
    const CrossEntropy parts = chunked_cross_entropy(c.hidden, c.weight, c.labels, chunk, Want::LossAndGrads);
    EXPECT_NEAR(parts.loss_sum, whole.loss_sum, 1e-5);
    EXPECT_EQ(parts.tokens, whole.tokens);
    EXPECT_LT(largest_difference(parts.grad_hidden, whole.grad_hidden), 1e-6);
    EXPECT_LT(largest_difference(parts.grad_weight, whole.grad_weight), 4e-6);
  }
}

TEST(CrossEntropy, PositionsWithoutLabelHaveZeroGradient) {
  const Case c;
  const CrossEntropy result = chunked_cross_entropy(c.hidden, c.weight, c.labels, 2, Want::LossAndGrads);
  EXPECT_EQ(result.grad_hidden.narrow(0, 3, 5).count_nonzero().item().toLong(), 0);
  EXPECT_GT(result.grad_hidden.narrow(0, 8, 3).count_nonzero().item().toLong(), 0);
}

TEST(CrossEntropy, BatchWithoutAnyLabelGivesZeros) {
  const Case c;
  const at::Tensor none = at::full({11}, kIgnoredLabel, at::TensorOptions(at::kLong));
  const CrossEntropy result = chunked_cross_entropy(c.hidden, c.weight, none, 4, Want::LossAndGrads);
  EXPECT_EQ(result.loss_sum, 0);
  EXPECT_EQ(result.tokens, 0);
  EXPECT_EQ(result.grad_hidden.count_nonzero().item().toLong(), 0);
  EXPECT_EQ(result.grad_weight.count_nonzero().item().toLong(), 0);
}

TEST(CrossEntropy, ALossScaleMultipliesTheGradientsAndNotTheLoss) {
  const Case c;
  const CrossEntropy plain = chunked_cross_entropy(c.hidden, c.weight, c.labels, 4, Want::LossAndGrads);
  for (const double scale : {65536.0, 1.0 / 64, 1000.0}) {
    const CrossEntropy scaled = chunked_cross_entropy(c.hidden, c.weight, c.labels, 4, Want::LossAndGrads, scale);
    EXPECT_EQ(scaled.loss_sum, plain.loss_sum);
    // A power of two is exact; another number rounds the fp32 gradient of a logit twice more.
    const double tolerance = scale == 1000.0 ? 1e-6 : 0;
    EXPECT_LE(largest_difference(scaled.grad_hidden / scale, plain.grad_hidden), tolerance) << scale;
    EXPECT_LE(largest_difference(scaled.grad_weight / scale, plain.grad_weight), 4 * tolerance) << scale;
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  const Case c;
  const CrossEntropy result = chunked_cross_entropy(c.hidden * 1e4, c.weight, c.labels, 4, Want::LossAndGrads);
  EXPECT_TRUE(std::isfinite(result.loss_sum));
  EXPECT_TRUE(result.grad_weight.isfinite().all().item().toBool());
}

TEST(CrossEntropy, SixteenBitGradientOfTheWeightIsAccumulatedInFp32) {
  const Case c;
  const at::Tensor hidden = c.hidden.to(at::kBFloat16);
  const at::Tensor weight = c.weight.to(at::kBFloat16);
  const CrossEntropy result = chunked_cross_entropy(hidden, weight, c.labels, 1, Want::LossAndGrads);
  EXPECT_EQ(result.grad_weight.scalar_type(), at::kFloat);
  EXPECT_EQ(result.grad_hidden.scalar_type(), at::kBFloat16);
  const CrossEntropy wide =
      chunked_cross_entropy(hidden.to(at::kFloat), weight.to(at::kFloat), c.labels, 11, Want::LossAndGrads);
  // Each of 6 products is off by at most one rounding of bf16 in the logits, the gradient and itself.
  EXPECT_LT(largest_difference(result.grad_weight, wide.grad_weight), 0.1);
  EXPECT_NEAR(result.loss_sum, wide.loss_sum, 0.02 * wide.loss_sum);
}

}  // namespace
}  // namespace strata::models
