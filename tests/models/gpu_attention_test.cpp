// By hand: no GPU has run this.
#include "models/gpu_attention.h"

#include <gtest/gtest.h>

namespace strata::models {
namespace {

constexpr AttentionShape kNarrow{
    .sequences = 1, .tokens = 100, .heads = 32, .key_heads = 32, .head_dim = 80, .element_bytes = 2};

// 132 multiprocessors and 32 heads: 5 copies, 128 rows for 100 tokens, 96 columns for 80.
constexpr std::uint64_t kCopies = std::uint64_t{5} * 128 * 32 * 96 * 4;
constexpr std::uint64_t kRowSums = std::uint64_t{32} * 128 * 4;

TEST(FlashBackward, HasACopyOfTheGradientOfQForEachShareOfTheGpu) {
  EXPECT_EQ(flash_backward_bytes(kNarrow, 132), kCopies + kRowSums);
  EXPECT_EQ(flash_backward_bytes(kNarrow, 128), kCopies / 5 * 4 + kRowSums);
  EXPECT_EQ(flash_backward_bytes(kNarrow, 1), kCopies / 5 + kRowSums);
}

TEST(FlashBackward, HasGradientsOfSharedKeysForEachQueryHead) {
  AttentionShape shape = kNarrow;
  shape.key_heads = 8;
  EXPECT_EQ(flash_backward_bytes(shape, 132), kCopies + kRowSums + std::uint64_t{2} * 100 * 32 * 80 * 2);
}

TEST(FlashBackward, RoundsWideHeadsTo64) {
  AttentionShape shape = kNarrow;
  shape.head_dim = 160;
  EXPECT_EQ(flash_backward_bytes(shape, 132), kCopies / 96 * 192 + kRowSums);
}

// 5 sequences have 1 copy each, 4 have 2: 8 rather than 5.
TEST(FlashBackward, CoversFewerSequencesToo) {
  AttentionShape shape = kNarrow;
  shape.sequences = 5;
  EXPECT_EQ(flash_backward_bytes(shape, 132), kCopies / 5 * 8 + 5 * kRowSums);
}

constexpr AttentionShape kMasked{
    .sequences = 2, .tokens = 100, .heads = 4, .key_heads = 4, .head_dim = 64, .element_bytes = 2};

TEST(EfficientBackward, HasTheGradientOfQInTilesAndABlockOfThoseOfKAndV) {
  const std::uint64_t grad_q = 128 * 128 * 4 + 2 * 16;
  const std::uint64_t grad_kv = 2 * 64 * 128 * 4;
  EXPECT_EQ(efficient_backward_bytes(kMasked), 8 * (grad_q + grad_kv) + 2 * 8 * 100 * 4);
}

TEST(EfficientBackward, WritesGradientsOfKAndVInPlaceInFp32) {
  AttentionShape shape = kMasked;
  shape.element_bytes = 4;
  EXPECT_EQ(efficient_backward_bytes(shape), 8 * (128 * 128 * 4 + 2 * 16) + 2 * 8 * 100 * 4);
}

}  // namespace
}  // namespace strata::models
