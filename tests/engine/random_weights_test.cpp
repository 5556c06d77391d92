#include "engine/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/numeric.h"

namespace strata::engine {
namespace {

constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";

TensorSpan span_of(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()};
}

std::unique_ptr<Parallel> threads(std::size_t count = 2) {
  return make_thread_pool(count);
}

std::vector<float> drawn(const std::string& name, std::uint64_t seed, std::uint64_t first, std::size_t numel) {
  std::vector<float> values(numel);
  random_weights(*threads(), name, seed, first, span_of(values));
  return values;
}

TEST(RandomWeights, DoNotDependOnHowTheyAreCutIntoPieces) {
  const std::vector<float> whole = drawn(kName, 42, 0, 1000);
  std::vector<float> pieces;
  for (const std::size_t numel : {1, 7, 300, 2, 690}) {
    const std::vector<float> piece = drawn(kName, 42, pieces.size(), numel);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
}

TEST(RandomWeights, DoNotDependOnTheThreads) {
  std::vector<float> alone(100003), together(alone.size());
  random_weights(*threads(1), kName, 42, 7, span_of(alone));
  random_weights(*threads(3), kName, 42, 7, span_of(together));
  EXPECT_EQ(together, alone);
}

TEST(RandomWeights, AreTheFp32ValuesRoundedIn16Bit) {
  const std::vector<float> values = drawn(kName, 42, 5, 200);
  std::vector<std::uint16_t> rounded(values.size());
  random_weights(*threads(), kName, 42, 5, {reinterpret_cast<std::byte*>(rounded.data()), DType::BF16, rounded.size()});
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(rounded[i], float_to_bf16(values[i]));
  random_weights(*threads(), kName, 42, 5, {reinterpret_cast<std::byte*>(rounded.data()), DType::F16, rounded.size()});
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(rounded[i], float_to_half(values[i]));
}

TEST(RandomWeights, DifferBetweenSeedsAndParameters) {
  const std::vector<float> values = drawn(kName, 42, 0, 100);
  EXPECT_NE(values, drawn(kName, 43, 0, 100));
  EXPECT_NE(values, drawn("model.layers.1.mlp.up_proj.weight", 42, 0, 100));
}

TEST(RandomWeights, HaveMeanZeroAndTheDeviationOfTransformers) {
  const std::vector<float> values = drawn(kName, 42, 0, 100000);
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto n = static_cast<double>(values.size());
  // Four standard errors: 0.02 / sqrt(n) of the mean, 0.02 / sqrt(2 n) of the deviation.
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 4 * 0.02 / std::sqrt(2 * n));
}

TEST(RandomWeights, StartNormsAtOneAndBiasesAtZero) {
  EXPECT_EQ(drawn("model.layers.0.input_layernorm.weight", 42, 3, 5), std::vector<float>(5, 1.0F));
  EXPECT_EQ(drawn("model.norm.weight", 42, 0, 5), std::vector<float>(5, 1.0F));
  EXPECT_EQ(drawn("model.layers.0.self_attn.q_proj.bias", 42, 3, 5), std::vector<float>(5, 0.0F));
}

}  // namespace
}  // namespace strata::engine
