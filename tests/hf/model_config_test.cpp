#include "hf/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "hf/temporary_folder.h"

namespace strata::hf {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig parse(const json& object) {
  return parse_model_config(object.dump(), "config.json");
}

std::string refusal(const std::string& text) {
  try {
    parse_model_config(text, "dir/config.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const json& object) {
  return refusal(object.dump());
}

// hidden 64, 4 heads, 2 key-value heads, 4 layers.
json tiny(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 1003},       {"hidden_size", 64},       {"intermediate_size", 172},
          {"num_hidden_layers", 4},   {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
}

json tiny(const std::string& model_type, const json& more) {
  json object = tiny(model_type);
  object.update(more);
  return object;
}

TEST(ModelConfig, ReadsTheOldDialect) {
  const ModelConfig config = parse(tiny("llama", {{"torch_dtype", "bfloat16"},
                                                  {"rope_theta", 500000.0},
                                                  {"rope_scaling",
                                                   {{"type", "llama3"},
                                                    {"factor", 32.0},
                                                    {"low_freq_factor", 1.5},
                                                    {"high_freq_factor", 4.5},
                                                    {"original_max_position_embeddings", 4096}}}}));

  EXPECT_EQ(config.dtype, DType::BF16);
  EXPECT_EQ(config.rope.type, RopeType::Llama3);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.factor, 32.0);
  EXPECT_EQ(config.rope.low_freq_factor, 1.5);
  EXPECT_EQ(config.rope.high_freq_factor, 4.5);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 4096);
}

TEST(ModelConfig, ReadsTheNewDialect) {
  const ModelConfig config =
      parse(tiny("llama", {{"dtype", "float16"},
                           {"rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 4}}}}));

  EXPECT_EQ(config.dtype, DType::F16);
  EXPECT_EQ(config.rope.type, RopeType::Linear);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.factor, 4.0);
}

TEST(ModelConfig, AbsentKeysHaveTheDefaultsOfLlama) {
  const ModelConfig config = parse({{"model_type", "llama"}});

  EXPECT_EQ(config.architecture, Architecture::Llama);
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.intermediate_size, 11008);
  EXPECT_EQ(config.num_hidden_layers, 32);
  EXPECT_EQ(config.num_attention_heads, 32);
  EXPECT_EQ(config.num_key_value_heads, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings || config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  EXPECT_EQ(config.rope.type, RopeType::Default);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.dtype.has_value());
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.sliding_window.size(), 32u);
  EXPECT_THAT(config.sliding_window, Each(0));
}

TEST(ModelConfig, AbsentKeysHaveTheDefaultsOfMistral) {
  const ModelConfig config = parse({{"model_type", "mistral"}});

  EXPECT_EQ(config.intermediate_size, 14336);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_THAT(config.sliding_window, Each(4096));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfig, AbsentKeysHaveTheDefaultsOfQwen) {
  const ModelConfig qwen2 = parse({{"model_type", "qwen2"}});
  const ModelConfig qwen3 = parse({{"model_type", "qwen3"}, {"hidden_size", 2048}});

  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.intermediate_size, 22016);
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_FALSE(qwen2.bos_token_id.has_value());
  EXPECT_THAT(qwen2.sliding_window, Each(0));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
}

TEST(ModelConfig, ExplicitHeadDimWinsOverHiddenByHeads) {
  EXPECT_EQ(parse(tiny("llama", {{"head_dim", 32}})).head_dim, 32);
  EXPECT_EQ(parse(tiny("llama", {{"head_dim", nullptr}})).head_dim, 16);
  EXPECT_EQ(parse(tiny("qwen2", {{"head_dim", 8}})).head_dim, 8);
}

TEST(ModelConfig, NullKeyValueHeadsMeansAsManyAsHeads) {
  EXPECT_EQ(parse(tiny("mistral", {{"num_key_value_heads", nullptr}})).num_key_value_heads, 4);
}

TEST(ModelConfig, AttentionBiasCoversAllFourProjections) {
  const ModelConfig llama = parse(tiny("llama", {{"attention_bias", true}, {"mlp_bias", true}}));
  const ModelConfig qwen3 = parse(tiny("qwen3", {{"attention_bias", true}}));

  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias);
  EXPECT_FALSE(qwen3.mlp_bias);
}

TEST(ModelConfig, MistralSlidesInEveryLayerUnlessNull) {
  EXPECT_THAT(parse(tiny("mistral", {{"sliding_window", 8}})).sliding_window, ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(parse(tiny("mistral", {{"sliding_window", nullptr}})).sliding_window, ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfig, QwenSlidesFromMaxWindowLayersOn) {
  const json more = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 3}};

  EXPECT_THAT(parse(tiny("qwen2", more)).sliding_window, ElementsAre(0, 0, 0, 8));
  json all = more;
  all["max_window_layers"] = 0;
  EXPECT_THAT(parse(tiny("qwen3", all)).sliding_window, ElementsAre(8, 8, 8, 8));
  json off = more;
  off["use_sliding_window"] = false;
  EXPECT_THAT(parse(tiny("qwen2", off)).sliding_window, ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfig, QwenLayerTypesDecidePerLayer) {
  const json layer_types = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
  const json more = {{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", layer_types}};

  EXPECT_THAT(parse(tiny("qwen3", more)).sliding_window, ElementsAre(0, 8, 0, 8));
}

TEST(ModelConfig, LayerTypesThatCannotBeHonouredAreRefused) {
  const json unknown = {"full_attention", "chunked_attention", "full_attention", "full_attention"};
  const json sliding = {"full_attention", "sliding_attention", "full_attention", "full_attention"};

  EXPECT_THAT(refusal(tiny("qwen2", {{"layer_types", unknown}})), HasSubstr("full_attention, sliding_attention"));
  EXPECT_THAT(refusal(tiny("qwen2", {{"layer_types", sliding}})), HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal(tiny("qwen2", {{"layer_types", {"full_attention"}}})), HasSubstr("num_hidden_layers = 4"));
}

TEST(ModelConfig, EosMayBeANumberAListOrNull) {
  EXPECT_THAT(parse(tiny("llama", {{"eos_token_id", 7}})).eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(tiny("llama", {{"eos_token_id", {7, 9}}})).eos_token_ids, ElementsAre(7, 9));
  EXPECT_TRUE(parse(tiny("llama", {{"eos_token_id", nullptr}})).eos_token_ids.empty());
  EXPECT_FALSE(parse(tiny("llama", {{"bos_token_id", nullptr}})).bos_token_id.has_value());
}

TEST(ModelConfig, RopeScalingMayBeNullOrDefault) {
  EXPECT_EQ(parse(tiny("llama", {{"rope_scaling", nullptr}})).rope.type, RopeType::Default);
  EXPECT_EQ(parse(tiny("llama", {{"rope_scaling", {{"rope_type", "default"}}}})).rope.type, RopeType::Default);
}

TEST(ModelConfig, Llama3TakesTheOriginalLengthFromMaxPositionsWhenAbsent) {
  const json rope = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};

  const ModelConfig config = parse(tiny("llama", {{"max_position_embeddings", 512}, {"rope_parameters", rope}}));

  EXPECT_EQ(config.rope.original_max_position_embeddings, 512);
}

TEST(ModelConfig, UnknownRopeTypesAreRefusedByName) {
  for (const std::string type : {"dynamic", "yarn", "longrope", "mrope", "su"}) {
    const json rope = {{"rope_type", type}, {"factor", 2.0}};
    EXPECT_THAT(refusal(tiny("llama", {{"rope_scaling", rope}})),
                AllOf(HasSubstr('"' + type + '"'), HasSubstr("supported: default, linear, llama3")));
  }
}

TEST(ModelConfig, IncompleteRopeScalingIsRefused) {
  EXPECT_THAT(refusal(tiny("llama", {{"rope_scaling", {{"type", "linear"}}}})), HasSubstr("factor is absent"));
  EXPECT_THAT(refusal(tiny("llama", {{"rope_scaling", {{"type", "llama3"}, {"factor", 8}}}})),
              HasSubstr("low_freq_factor is absent"));
  EXPECT_THAT(refusal(tiny("llama", {{"rope_scaling", "linear"}})), HasSubstr("expected an object"));
}

TEST(ModelConfig, UnknownModelTypesAreRefusedWithTheSupportedOnes) {
  EXPECT_THAT(refusal(tiny("gpt2")),
              AllOf(HasSubstr("\"gpt2\""), HasSubstr("llama, mistral, qwen2, qwen3"), HasSubstr("dir/config.json")));
  EXPECT_THAT(refusal(json{{"hidden_size", 64}}), HasSubstr("model_type is absent"));
}

TEST(ModelConfig, WhatTrainsAnotherModelIsRefused) {
  EXPECT_THAT(refusal(tiny("llama", {{"hidden_act", "gelu"}})), AllOf(HasSubstr("\"gelu\""), HasSubstr("silu")));
  EXPECT_THAT(refusal(tiny("llama", {{"attention_dropout", 0.1}})), HasSubstr("attention_dropout is 0.1"));
  EXPECT_THAT(refusal(tiny("qwen2", {{"hidden_dropout", 0.5}})), HasSubstr("hidden_dropout is 0.5"));
  EXPECT_THAT(refusal(tiny("llama", {{"partial_rotary_factor", 0.5}})), HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(refusal(tiny("llama", {{"quantization_config", {{"bits", 4}}}})), HasSubstr("unquantized"));
  EXPECT_THAT(refusal(tiny("llama", {{"architectures", {"LlamaForSequenceClassification"}}})),
              HasSubstr("LlamaForCausalLM"));
}

TEST(ModelConfig, HarmlessKeysAreAccepted) {
  const json more = {{"pretraining_tp", 2},       {"attention_dropout", 0.0}, {"classifier_dropout", 0.1},
                     {"hidden_act", "swish"},     {"use_cache", true},        {"architectures", {"LlamaForCausalLM"}},
                     {"initializer_range", 0.02}, {"unknown", {{"key", 1}}}};

  EXPECT_EQ(refusal(tiny("llama", more)), "accepted");
}

TEST(ModelConfig, NumbersOfTheWrongTypeOrSignAreRefusedWithKeyAndValue) {
  for (const json& value : {json(0), json(-64), json(64.0), json("64"), json(true), json(nullptr), json::array(),
                            json(std::uint64_t{1} << 63), json(1e300)}) {
    EXPECT_THAT(refusal(tiny("llama", {{"hidden_size", value}})), HasSubstr("hidden_size is " + value.dump()));
  }
  for (const json& value : {json(0.0), json(-1e-6), json("1e-6"), json(nullptr)}) {
    EXPECT_THAT(refusal(tiny("llama", {{"rms_norm_eps", value}})), HasSubstr("rms_norm_eps is " + value.dump()));
  }
  EXPECT_THAT(refusal(tiny("llama", {{"tie_word_embeddings", 1}})), HasSubstr("tie_word_embeddings is 1"));
  EXPECT_THAT(refusal(tiny("llama", {{"eos_token_id", -1}})), HasSubstr("eos_token_id is -1"));
  EXPECT_THAT(refusal(tiny("llama", {{"eos_token_id", {2, "x"}}})), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal(tiny("llama", {{"torch_dtype", "float8_e4m3fn"}})), HasSubstr("float8_e4m3fn"));
}

TEST(ModelConfig, AbsurdLayerCountsAreRefusedBeforeMemoryIsSpent) {
  EXPECT_THAT(refusal(tiny("llama", {{"num_hidden_layers", 2'000'000'000}})), HasSubstr("from 1 to 65536"));
}

TEST(ModelConfig, HeadCountsMustDivide) {
  EXPECT_THAT(refusal(tiny("llama", {{"num_key_value_heads", 3}})),
              HasSubstr("3 does not divide num_attention_heads = 4"));
  EXPECT_THAT(refusal(tiny("llama", {{"hidden_size", 66}})), HasSubstr("66 is not a multiple"));
  EXPECT_THAT(refusal(tiny("llama", {{"head_dim", 7}})), HasSubstr("odd"));
}

TEST(ModelConfig, DuplicateKeysAreRefused) {
  EXPECT_THAT(refusal(std::string(R"({"model_type": "llama", "hidden_size": 64, "hidden_size": 128})")),
              HasSubstr("duplicate key \"hidden_size\""));
}

TEST(ModelConfig, EqualKeysOfDifferentObjectsAreNoDuplicates) {
  EXPECT_EQ(refusal(std::string(R"({"model_type": "llama", "a": {"b": 1}, "c": {"b": 1, "a": 2}})")), "accepted");
}

TEST(ModelConfig, BrokenJsonIsRefusedWithLineAndColumn) {
  EXPECT_THAT(refusal(std::string("{\n \"model_type\": llama}")), HasSubstr("line 2, column 16"));
  EXPECT_THAT(refusal(std::string("[]")), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("nested deeper"));
}

TEST(ModelConfig, MissingFolderAndFileAreNamed) {
  const test::TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    try {
      read_model_config(path);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };

  EXPECT_THAT(message(folder / "absent"), AllOf(HasSubstr("absent"), HasSubstr("nothing is downloaded")));
  EXPECT_THAT(message(folder.path()), HasSubstr("config.json: no such file"));
}

TEST(ModelConfig, ReadsAFileWithAByteOrderMark) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "config.json", "\xEF\xBB\xBF" + tiny("qwen3").dump());

  EXPECT_EQ(read_model_config(folder.path()).architecture, Architecture::Qwen3);
}

}  // namespace
}  // namespace strata::hf
