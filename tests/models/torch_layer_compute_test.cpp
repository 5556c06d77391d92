#include "zero/torch_layer_compute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "models/flat_run.h"
#include "models/tiny_config.h"
#include "zero/torch_allocator.h"

namespace strata::models {
namespace {

hf::ModelConfig tied_config() {
  hf::ModelConfig config = tiny_config();
  config.tie_word_embeddings = true;
  config.qkv_bias = true;
  return config;
}

constexpr DecoderOptions kBf16Upcast{.group_type = at::kBFloat16, .compute = DecoderOptions::Compute::Fp32};
constexpr DecoderOptions kBf16{.group_type = at::kBFloat16};
constexpr DecoderOptions kFp16{.group_type = at::kHalf};

TEST(TorchLayerCompute, TheSameBatchGivesTheSameBits) {
  FlatRun run(tied_config(), {});
  run.bind();
  const IdBatch batch = random_ids(3, 17, 101, 1);
  run.forward(batch);
  const auto first = run.backward();
  const double loss = run.compute().loss(0).loss_sum;
  run.forward(batch);
  EXPECT_EQ(run.backward(), first);
  EXPECT_EQ(run.compute().loss(0).loss_sum, loss);
}

TEST(TorchLayerCompute, MicroBatchesThatPassTheLayersTogetherGiveTheBitsOfEachAlone) {
  const std::vector<IdBatch> batches = {random_ids(3, 17, 101, 1), random_ids(1, 5, 101, 2), random_ids(2, 9, 101, 3)};
  FlatRun run(tied_config(), {});
  run.bind();
  const auto together = run.train_vertically(batches);
  std::vector<double> losses;
  for (std::size_t m = 0; m < batches.size(); ++m) losses.push_back(run.compute().loss(m).loss_sum);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    run.forward(batches[m]);
    EXPECT_EQ(run.backward(), together[m]);
    EXPECT_EQ(run.compute().loss(0).loss_sum, losses[m]);
  }
}

TEST(TorchLayerCompute, AMicroBatchThatIsNotOpenIsRefusedByNumber) {
  FlatRun run(tied_config(), {});
  run.bind();
  run.forward(random_ids(1, 5, 101, 5));
  run.compute().end(0);
  try {
    run.compute().forward(0, 0);
    FAIL() << "accepted";
  } catch (const ContractViolation& error) {
    EXPECT_NE(std::string(error.what()).find("micro-batch 0"), std::string::npos) << error.what();
  }
}

TEST(TorchLayerCompute, WeightsMayMoveBetweenForwardAndBackward) {
  const IdBatch batch = random_ids(2, 9, 101, 2);
  FlatRun still(tied_config(), {});
  still.bind();
  still.forward(batch);
  const auto expected = still.backward();
  FlatRun moving(tied_config(), {});
  moving.bind();
  moving.forward(batch);
  moving.move_weights();
  EXPECT_EQ(moving.backward(), expected);
}

TEST(TorchLayerCompute, KeptGraphsGiveTheBitsOfRecomputationWhileWeightsComeAndGo) {
  const std::vector<IdBatch> batches = {random_ids(2, 9, 101, 1), random_ids(1, 14, 101, 2)};
  hf::ModelConfig config = tied_config();
  config.qk_norm = true;
  for (const DecoderOptions& options : {DecoderOptions{}, kBf16, kBf16Upcast, kFp16}) {
    FlatRun recomputing(config, options);
    recomputing.bind();
    std::vector<std::vector<std::vector<Bytes>>> expected;
    for (const IdBatch& batch : batches) {
      recomputing.forward(batch);
      expected.push_back(recomputing.backward());
    }
    for (const std::size_t kept : {1, 2, 100}) {
      SCOPED_TRACE(kept);
      FlatRun keeping(config, options);
      keeping.bind();
      keeping.compute().keep_graphs(kept);
      for (std::size_t m = 0; m < batches.size(); ++m) {
        keeping.forward(batches[m]);
        keeping.unbind();
        keeping.move_weights();
        EXPECT_EQ(keeping.backward(), expected[m]);
      }
      EXPECT_EQ(keeping.train_vertically(batches), expected);
    }
  }
}

// A power of two moves only exponents, so every gradient is that of the loss times the scale, bit for bit.
TEST(TorchLayerCompute, ALossScaleMultipliesEveryGradientAndNotTheLoss) {
  IdBatch batch = random_ids(2, 9, 101, 6);
  FlatRun run(tied_config(), {});
  run.bind();
  run.forward(batch);
  const auto plain = run.backward();
  const double loss = run.compute().loss(0).loss_sum;
  batch.loss_scale = 1024;
  run.forward(batch);
  const auto scaled = run.backward();
  EXPECT_EQ(run.compute().loss(0).loss_sum, loss);
  for (std::size_t layer = 0; layer < plain.size(); ++layer) {
    for (std::size_t g = 0; g < plain[layer].size(); ++g) {
      const auto* const before = reinterpret_cast<const float*>(plain[layer][g].data());
      const auto* const after = reinterpret_cast<const float*>(scaled[layer][g].data());
      for (std::size_t i = 0; i < plain[layer][g].size() / sizeof(float); ++i) {
        ASSERT_EQ(after[i], 1024 * before[i]) << "layer " << layer << ", element " << i;
      }
    }
  }
}

// Of a gradient below the smallest subnormal of fp16 nothing is left, unless the loss is scaled.
TEST(TorchLayerCompute, ALossScaleKeepsGradientsThatFp16WouldFlush) {
  const auto nonzero = [](double scale) {
    IdBatch batch = random_ids(2, 9, 101, 6);
    FlatRun run(tied_config(), {.group_type = at::kHalf, .compute = DecoderOptions::Compute::Fp32});
    run.bind();
    batch.loss_scale = scale;
    run.forward(batch);
    std::size_t count = 0;
    for (const auto& groups : run.backward()) {
      for (const Bytes& flat : groups) {
        const auto* const bits = reinterpret_cast<const std::uint16_t*>(flat.data());
        count += static_cast<std::size_t>(
            std::count_if(bits, bits + flat.size() / 2, [](std::uint16_t half) { return (half & 0x7fff) != 0; }));
      }
    }
    return count;
  };
  EXPECT_EQ(nonzero(0x1p-60), 0U);
  EXPECT_GT(nonzero(1), 1000U);
}

TEST(TorchLayerCompute, PaddingOfFlatGradientsIsZero) {
  FlatRun run(tied_config(), {});
  run.bind();
  run.forward(random_ids(1, 5, 101, 3));
  const auto gradients = run.backward();
  std::size_t gaps = 0;
  for (std::size_t layer = 0; layer < gradients.size(); ++layer) {
    const auto& groups = run.compute().groups_of(layer);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto* const values = reinterpret_cast<const float*>(gradients[layer][g].data());
      run.compute().layouts()[groups[g]].for_each_gap([&](std::size_t offset, std::size_t numel) {
        for (std::size_t i = offset; i < offset + numel; ++i) EXPECT_EQ(values[i], 0.0f);
        ++gaps;
      });
    }
  }
  EXPECT_GT(gaps, 0u);
}

TEST(TorchLayerCompute, EmbeddingBackwardRunsWithoutItsWeights) {
  FlatRun run(tiny_config(), {});
  run.bind();
  run.forward(random_ids(1, 5, 101, 4));
  EXPECT_FALSE(run.compute().backward_needs_params(0));
  run.compute().binding(0).unbind();
  EXPECT_NO_THROW(run.backward());
}

TEST(TorchLayerCompute, LayerWithoutMemoryIsRefusedByName) {
  FlatRun run(tiny_config(), {});
  run.bind();
  run.compute().binding(1).unbind();
  try {
    run.forward(random_ids(1, 5, 101, 5));
    FAIL() << "an unbound group was used";
  } catch (const ContractViolation& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.0"), std::string::npos) << error.what();
  }
}

TEST(TorchLayerCompute, EvaluationGivesTheLossOfTraining) {
  FlatRun run(tied_config(), {});
  run.bind();
  const IdBatch batch = random_ids(2, 11, 101, 6);
  run.forward(batch);
  run.backward();
  const zero::LossSum trained = run.compute().loss(0);
  run.compute().begin(0, batch.view(), zero::Pass::Evaluate);
  for (std::size_t layer = 0; layer < run.compute().layers(); ++layer) run.compute().forward(0, layer);
  EXPECT_EQ(run.compute().loss(0).loss_sum, trained.loss_sum);
  EXPECT_EQ(run.compute().loss(0).tokens, trained.tokens);
}

TEST(TorchLayerCompute, GenerationGivesOneRowOfLogitsPerSequence) {
  FlatRun run(tied_config(), {});
  run.bind();
  IdBatch batch = random_ids(2, 11, 101, 7);
  batch.labels.clear();
  run.compute().begin(0, batch.view(), zero::Pass::Generate);
  for (std::size_t layer = 0; layer < run.compute().layers(); ++layer) run.compute().forward(0, layer);
  EXPECT_EQ(run.compute().logits(0).size(), 2u * 101u);
}

// The loss of a step along the gradient, seen from the loss alone: (L(w + h d) - L(w - h d)) / 2h = <gradient, d>.
TEST(TorchLayerCompute, GradientOfTheTiedEmbeddingIsTheSumOfBothUses) {
  FlatRun run(tied_config(), {});
  run.bind();
  const IdBatch batch = random_ids(2, 13, 101, 8);
  run.forward(batch);
  const auto gradients = run.backward();
  const std::size_t numel = run.compute().layouts()[0].numel();
  const auto* const from_lookup = reinterpret_cast<const float*>(gradients.front()[0].data());
  const auto* const from_head = reinterpret_cast<const float*>(gradients.back()[1].data());
  auto* const weights = reinterpret_cast<float*>(run.weights()[0].data());
  double squares = 0;
  for (std::size_t i = 0; i < numel; ++i) squares += std::pow(static_cast<double>(from_lookup[i]) + from_head[i], 2);
  const double length = std::sqrt(squares);
  const auto loss_at = [&](double step) {
    const std::vector<float> before(weights, weights + numel);
    for (std::size_t i = 0; i < numel; ++i) {
      weights[i] += static_cast<float>(step * (static_cast<double>(from_lookup[i]) + from_head[i]) / length);
    }
    run.forward(batch);
    run.backward();
    std::copy(before.begin(), before.end(), weights);
    return run.compute().loss(0).loss_sum;
  };
  constexpr double kStep = 2e-3;
  EXPECT_NEAR((loss_at(kStep) - loss_at(-kStep)) / (2 * kStep), length, 2e-3 * length);
}

// A device's stream ends before the layers do, and must find no memory of its own.
TEST(TorchLayerCompute, HoldsNoMemoryOnceItIsReleased) {
  Budget budget("host", std::uint64_t{64} << 20);
  const zero::TorchAllocator allocator(budget);
  FlatRun run(tied_config(), kBf16);
  run.bind();
  run.compute().keep_graphs(1);
  run.forward(random_ids(2, 13, 101, 9));
  ASSERT_GT(budget.used(), 0U);

  run.compute().release();

  EXPECT_EQ(budget.used(), 0U);
  EXPECT_FALSE(run.compute().layouts().empty());
}

TEST(TorchLayerCompute, Bf16WeightsComputeCloseToTheSameWeightsInFp32) {
  const IdBatch batch = random_ids(2, 13, 101, 9);
  double losses[2];
  for (const bool upcast : {false, true}) {
    FlatRun run(tied_config(), upcast ? kBf16Upcast : kBf16);
    run.bind();
    run.forward(batch);
    const auto gradients = run.backward();
    losses[upcast] = run.compute().loss(0).loss_sum;
    EXPECT_TRUE(std::isfinite(losses[upcast]));
  }
  EXPECT_NEAR(losses[0], losses[1], 0.01 * losses[1]);
  EXPECT_NE(losses[0], losses[1]);
}

}  // namespace
}  // namespace strata::models
