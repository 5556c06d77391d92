#include "engine/model_size.h"

#include <gtest/gtest.h>

#include <fstream>

#include "bench/hide_forecast.h"
#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

TEST(ModelSize, OfLlama7BIsTheOneThatBenchHideAssumes) {
  const test::TempDir folder;
  std::ofstream(folder.path() / "config.json") << R"({
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 2048, "tie_word_embeddings": false})";

  const ModelSize size = model_size(folder.path());

  EXPECT_EQ(size.parameters, 6738415616U);
  EXPECT_EQ(size.first_group, 131072000U);
  EXPECT_EQ(size.largest_group, 202383360U);
  const bench::ModelShape assumed;
  EXPECT_EQ(assumed.parameters, static_cast<double>(size.parameters));
  EXPECT_EQ(assumed.first_group, static_cast<double>(size.first_group));
  EXPECT_EQ(assumed.largest_group, static_cast<double>(size.largest_group));
}

TEST(ModelSize, OfAFolderWithoutAConfigIsAnError) {
  const test::TempDir folder;
  EXPECT_THROW((void)model_size(folder.path()), DataError);
}

}  // namespace
}  // namespace strata::engine
