#include "models/decoder.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/tiny_config.h"

namespace strata::models {
namespace {

using Names = std::vector<std::string>;

Names names_of(const zero::GroupDecl& group) {
  Names names;
  for (const zero::ParamDecl& param : group.params) names.push_back(param.name);
  return names;
}

TEST(Decoder, GroupsAreTheEmbeddingEachBlockAndTheHead) {
  const auto model = make_decoder(tiny_config(), {});
  Names groups;
  for (const zero::GroupDecl& group : model->groups()) groups.push_back(group.name);
  EXPECT_EQ(groups, (Names{"model.embed_tokens", "model.layers.0", "model.layers.1", "head"}));
  EXPECT_EQ(model->blocks(), 2u);
}

TEST(Decoder, UntiedHeadHoldsNormAndProjection) {
  const auto model = make_decoder(tiny_config(), {});
  EXPECT_EQ(names_of(model->groups()[3]), (Names{"model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(model->head().groups(), (std::vector<std::size_t>{3}));
}

TEST(Decoder, TiedEmbeddingIsOneGroupNamedByTheFirstAndTheLastLayer) {
  hf::ModelConfig config = tiny_config();
  config.tie_word_embeddings = true;
  const auto model = make_decoder(config, {});
  EXPECT_EQ(names_of(model->groups()[3]), (Names{"model.norm.weight"}));
  EXPECT_EQ(model->head().groups(), (std::vector<std::size_t>{3, 0}));
  EXPECT_EQ(model->embedding().groups(), (std::vector<std::size_t>{0}));
}

TEST(Decoder, BiasesAndHeadNormsAreDeclaredInTheOrderOfUse) {
  hf::ModelConfig config = tiny_config();
  config.qkv_bias = true;
  config.qk_norm = true;
  const auto model = make_decoder(config, {});
  const std::string prefix = "model.layers.1.";
  Names expected;
  for (const char* name :
       {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
        "self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.q_norm.weight",
        "self_attn.k_norm.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight",
        "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
    expected.push_back(prefix + name);
  }
  EXPECT_EQ(names_of(model->groups()[2]), expected);
}

TEST(Decoder, NormsAndBiasesDoNotDecayAndMatricesDo) {
  hf::ModelConfig config = tiny_config();
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  const auto model = make_decoder(config, {});
  for (const zero::GroupDecl& group : model->groups()) {
    for (const zero::ParamDecl& param : group.params) EXPECT_EQ(param.decay, param.shape.size() == 2) << param.name;
  }
}

TEST(Decoder, ExplicitHeadDimSizesTheProjections) {
  hf::ModelConfig config = tiny_config();
  config.head_dim = 10;
  const auto model = make_decoder(config, {});
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const zero::ParamDecl& param : model->groups()[1].params) shapes[param.name] = param.shape;
  EXPECT_EQ(shapes["model.layers.0.self_attn.q_proj.weight"], (std::vector<std::int64_t>{40, 28}));
  EXPECT_EQ(shapes["model.layers.0.self_attn.k_proj.weight"], (std::vector<std::int64_t>{20, 28}));
  EXPECT_EQ(shapes["model.layers.0.self_attn.o_proj.weight"], (std::vector<std::int64_t>{28, 40}));
}

TEST(Decoder, RefusesShapesThatDoNotFitTogether) {
  hf::ModelConfig odd = tiny_config();
  odd.head_dim = 7;
  EXPECT_THROW(make_decoder(odd, {}), DataError);
  hf::ModelConfig heads = tiny_config();
  heads.num_key_value_heads = 3;
  EXPECT_THROW(make_decoder(heads, {}), DataError);
}

TEST(Decoder, RefusesOptionsItCannotHonour) {
  EXPECT_THROW(make_decoder(tiny_config(), {.group_type = at::kDouble}), ConfigError);
  EXPECT_THROW(make_decoder(tiny_config(), {.loss_chunk_tokens = 0}), ConfigError);
}

}  // namespace
}  // namespace strata::models
