// OptimizerConfig: which optimizer, and how its states are stored. The one description that states, checkpoints and
// kernels follow.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/optimizer_math.h"
#include "core/shard_optimizer.h"

namespace strata {

// How the fp32 master of a 16-bit parameter is kept. fp32 parameters are their own master and ignore this.
enum class MasterEncoding : std::uint8_t {
  Fp32,       // state "master"
  Remainder,  // bf16 parameters only: state "remainder", the 16 bits that the parameter lacks; exact
};

// How moments are kept. What is not exact is defined in core/state_encodings.h.
enum class MomentEncoding : std::uint8_t {
  Fp32,
  Bf16,    // rounded stochastically
  Block8,  // 8 bits and a scale per kScaleBlock elements
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::AdamW;
  MasterEncoding master = MasterEncoding::Fp32;
  MomentEncoding moments = MomentEncoding::Fp32;
};

// "adamw", "adam", "lion", "momentum", "nesterov", "sgd"; "fp32", "remainder"; "fp32", "bf16", "8bit".
// The parsers throw ConfigError, which lists the names that exist.
std::string_view name_of(OptimizerKind kind);
std::string_view name_of(MasterEncoding encoding);
std::string_view name_of(MomentEncoding encoding);
OptimizerKind optimizer_kind_from_name(std::string_view name);
MasterEncoding master_encoding_from_name(std::string_view name);
MomentEncoding moment_encoding_from_name(std::string_view name);

// What the values of a moment can be, which decides the table of its 8-bit codes.
enum class MomentRange : std::uint8_t { Signed, NotNegative };

struct MomentSpec {
  std::string_view name;  // "exp_avg", "exp_avg_sq", "momentum_buffer"
  MomentRange range = MomentRange::Signed;
};

// In the order of moment1, moment2 of UpdateElement.
std::vector<MomentSpec> moment_specs(OptimizerKind kind);

// The states for parameters of type `param`, in the order of ShardViews::states: "master" or "remainder" (16-bit
// parameters), then each moment, an 8-bit one followed by its scales ("exp_avg_scale").
// Throws: ConfigError for a remainder of anything but bf16 and fp32 parameters.
std::vector<StateSpec> state_specs(const OptimizerConfig& config, DType param);

// Whether an update reads the parameter before it writes it: fp32 parameters, and those with a remainder.
bool reads_param(const OptimizerConfig& config, DType param);

// Bytes of states per parameter element, scales included.
double state_bytes_per_element(const OptimizerConfig& config, DType param);

}  // namespace strata
