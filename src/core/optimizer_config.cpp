#include "core/optimizer_config.h"

#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/state_encodings.h"

namespace strata {
namespace {

template <typename T>
using Named = std::pair<T, std::string_view>;

constexpr std::array<Named<OptimizerKind>, kOptimizerKinds> kKinds = {{{OptimizerKind::AdamW, "adamw"},
                                                                       {OptimizerKind::Adam, "adam"},
                                                                       {OptimizerKind::Lion, "lion"},
                                                                       {OptimizerKind::Momentum, "momentum"},
                                                                       {OptimizerKind::Nesterov, "nesterov"},
                                                                       {OptimizerKind::Sgd, "sgd"}}};
constexpr std::array<Named<MasterEncoding>, 2> kMasters = {
    {{MasterEncoding::Fp32, "fp32"}, {MasterEncoding::Remainder, "remainder"}}};
constexpr std::array<Named<MomentEncoding>, 3> kMoments = {
    {{MomentEncoding::Fp32, "fp32"}, {MomentEncoding::Bf16, "bf16"}, {MomentEncoding::Block8, "8bit"}}};

template <typename Table, typename T>
std::string_view name_in(const Table& table, T value) {
  for (const auto& [known, name] : table) {
    if (known == value) return name;
  }
  return "unknown";
}

template <typename Table>
auto value_in(const Table& table, std::string_view name, const std::string& what) {
  std::string names;
  for (const auto& [value, known] : table) {
    if (known == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw ConfigError("unknown " + what + " \"" + std::string(name) + "\"; there are " + names);
}

bool has_master(DType param) {
  return param == DType::BF16 || param == DType::F16;
}

}  // namespace

std::string_view name_of(OptimizerKind kind) {
  return name_in(kKinds, kind);
}
std::string_view name_of(MasterEncoding encoding) {
  return name_in(kMasters, encoding);
}
std::string_view name_of(MomentEncoding encoding) {
  return name_in(kMoments, encoding);
}
OptimizerKind optimizer_kind_from_name(std::string_view name) {
  return value_in(kKinds, name, "optimizer");
}
MasterEncoding master_encoding_from_name(std::string_view name) {
  return value_in(kMasters, name, "encoding of the master");
}
MomentEncoding moment_encoding_from_name(std::string_view name) {
  return value_in(kMoments, name, "encoding of moments");
}

std::vector<MomentSpec> moment_specs(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::AdamW:
    case OptimizerKind::Adam:
      return {{"exp_avg", MomentRange::Signed}, {"exp_avg_sq", MomentRange::NotNegative}};
    case OptimizerKind::Lion:
      return {{"exp_avg", MomentRange::Signed}};
    case OptimizerKind::Momentum:
    case OptimizerKind::Nesterov:
      return {{"momentum_buffer", MomentRange::Signed}};
    case OptimizerKind::Sgd:
      return {};
  }
  return {};
}

std::vector<StateSpec> state_specs(const OptimizerConfig& config, DType param) {
  std::vector<StateSpec> specs;
  if (config.master == MasterEncoding::Remainder && param == DType::F16) {
    throw ConfigError(
        "a remainder completes a bf16 parameter to its fp32 master; an F16 parameter needs the fp32 master");
  }
  if (has_master(param)) {
    const bool remainder = config.master == MasterEncoding::Remainder;
    specs.push_back(remainder ? StateSpec{"remainder", DType::U16} : StateSpec{"master", DType::F32});
  }
  for (const MomentSpec& moment : moment_specs(config.kind)) {
    const std::string name(moment.name);
    if (config.moments == MomentEncoding::Fp32) specs.push_back({name, DType::F32});
    if (config.moments == MomentEncoding::Bf16) specs.push_back({name, DType::BF16});
    if (config.moments != MomentEncoding::Block8) continue;
    specs.push_back({name, DType::U8});
    specs.push_back({name + "_scale", DType::F32, kScaleBlock});
  }
  return specs;
}

bool reads_param(const OptimizerConfig& config, DType param) {
  return !has_master(param) || config.master == MasterEncoding::Remainder;
}

double state_bytes_per_element(const OptimizerConfig& config, DType param) {
  double bytes = 0;
  for (const StateSpec& spec : state_specs(config, param)) {
    bytes += static_cast<double>(bytes_of(spec.dtype)) / static_cast<double>(spec.elements_per_value);
  }
  return bytes;
}

}  // namespace strata
