#include "models/token_embedding.h"

#include <ATen/Context.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

namespace strata::models {
namespace {

// As the plug-in sets it, for a GPU's results: else the host's index_put_ adds with several threads at once.
class SumRowsByToken : public ::testing::Test {
 protected:
  SumRowsByToken() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~SumRowsByToken() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
};

// What a GPU computes with, beside what the host does: tokens that occur many times, from less than 1,024 positions to
// more than 3,072, and a vocabulary of which most never occurs.
TEST_F(SumRowsByToken, HasTheBitsOfTheEmbeddingsGradientOnTheHost) {
  for (const std::int64_t positions : {1, 7, 1500, 4000}) {
    const at::Tensor rows = at::randn({2, positions, 24}, at::kFloat);
    const at::Tensor tokens = at::randint(0, 50, {2, positions}, at::kLong);

    const at::Tensor sums = sum_rows_by_token(rows, tokens, 1000);

    EXPECT_TRUE(at::equal(sums, at::embedding_dense_backward(rows, tokens, 1000, -1, false))) << positions;
  }
}

TEST_F(SumRowsByToken, AddsInTheOrderOfThePositions) {
  const at::Tensor rows = at::tensor({1e8F, 1.0F, -1e8F, 5.0F}).reshape({4, 1});
  const at::Tensor tokens = at::tensor({2, 2, 2, 0}, at::kLong);

  const at::Tensor sums = sum_rows_by_token(rows, tokens, 3);

  EXPECT_EQ(sums[2].item<float>(), 0.0F) << "1 is lost in 1e8; added last it would not be";
  EXPECT_EQ(sums[0].item<float>(), 5.0F);
  EXPECT_EQ(sums[1].item<float>(), 0.0F);
}

}  // namespace
}  // namespace strata::models
