#include "core/optimizer_config.h"

#include <gmock/gmock.h>

#include <string>

#include "core/error.h"
#include "core/state_encodings.h"

namespace strata {
namespace {

// "name dtype/elements_per_value" of each state.
std::vector<std::string> described(const OptimizerConfig& config, DType param) {
  std::vector<std::string> states;
  for (const StateSpec& spec : state_specs(config, param)) {
    states.push_back(spec.name + " " + std::string(name_of(spec.dtype)) + "/" +
                     std::to_string(spec.elements_per_value));
  }
  return states;
}

using ::testing::ElementsAre;

TEST(OptimizerConfig, TheDefaultIsAdamWWithFp32States) {
  EXPECT_THAT(described({}, DType::F32), ElementsAre("exp_avg F32/1", "exp_avg_sq F32/1"));
  EXPECT_THAT(described({}, DType::BF16), ElementsAre("master F32/1", "exp_avg F32/1", "exp_avg_sq F32/1"));
}

TEST(OptimizerConfig, EncodingsChangeTheStates) {
  const OptimizerConfig lean = {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8};
  EXPECT_THAT(described(lean, DType::BF16), ElementsAre("remainder U16/1", "exp_avg U8/1", "exp_avg_scale F32/256",
                                                        "exp_avg_sq U8/1", "exp_avg_sq_scale F32/256"));
  EXPECT_THAT(described({.kind = OptimizerKind::Nesterov, .moments = MomentEncoding::Bf16}, DType::F16),
              ElementsAre("master F32/1", "momentum_buffer BF16/1"));
  EXPECT_THAT(described({.kind = OptimizerKind::Lion}, DType::F32), ElementsAre("exp_avg F32/1"));
  EXPECT_THAT(described({.kind = OptimizerKind::Sgd, .moments = MomentEncoding::Block8}, DType::F32), ElementsAre());
}

// The table of encodings in docs/numerics.md.
TEST(OptimizerConfig, BytesPerParameter) {
  const auto bytes = [](MasterEncoding master, MomentEncoding moments) {
    return state_bytes_per_element({.master = master, .moments = moments}, DType::BF16);
  };
  EXPECT_EQ(bytes(MasterEncoding::Fp32, MomentEncoding::Fp32), 12);
  EXPECT_EQ(bytes(MasterEncoding::Remainder, MomentEncoding::Fp32), 10);
  EXPECT_EQ(bytes(MasterEncoding::Fp32, MomentEncoding::Bf16), 8);
  EXPECT_EQ(bytes(MasterEncoding::Fp32, MomentEncoding::Block8), 6.03125);
  EXPECT_EQ(bytes(MasterEncoding::Remainder, MomentEncoding::Bf16), 6);
  EXPECT_EQ(bytes(MasterEncoding::Remainder, MomentEncoding::Block8), 4.03125);
}

TEST(OptimizerConfig, ARemainderCompletesBf16Only) {
  const OptimizerConfig remainder = {.master = MasterEncoding::Remainder};
  EXPECT_THROW(state_specs(remainder, DType::F16), ConfigError);
  EXPECT_THAT(described(remainder, DType::F32), ElementsAre("exp_avg F32/1", "exp_avg_sq F32/1"));
  EXPECT_TRUE(reads_param(remainder, DType::BF16));
  EXPECT_TRUE(reads_param({}, DType::F32));
  EXPECT_FALSE(reads_param({}, DType::BF16));
}

TEST(OptimizerConfig, NamesGoBothWaysAndUnknownOnesListWhatThereIs) {
  for (const char* name : {"adamw", "adam", "lion", "momentum", "nesterov", "sgd"}) {
    EXPECT_EQ(name_of(optimizer_kind_from_name(name)), name);
  }
  for (const char* name : {"fp32", "remainder"}) EXPECT_EQ(name_of(master_encoding_from_name(name)), name);
  for (const char* name : {"fp32", "bf16", "8bit"}) EXPECT_EQ(name_of(moment_encoding_from_name(name)), name);
  try {
    moment_encoding_from_name("int4");
    FAIL() << "accepted int4";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("fp32, bf16, 8bit"));
  }
}

TEST(StateSpec, ValuesAreRoundedUp) {
  const StateSpec scale = {"exp_avg_scale", DType::F32, kScaleBlock};
  EXPECT_EQ(scale.values_for(0), 0u);
  EXPECT_EQ(scale.values_for(1), 1u);
  EXPECT_EQ(scale.values_for(256), 1u);
  EXPECT_EQ(scale.values_for(257), 2u);
}

}  // namespace
}  // namespace strata
