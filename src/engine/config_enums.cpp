// Choices among a few names.
#include "engine/config_values.h"

#include <yaml-cpp/yaml.h>

#include <array>
#include <span>

#include "core/error.h"

namespace strata::engine {
namespace {

using offload::TierKind;

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

// What may be written for an enumeration, and the words that users know and that are refused for now.
template <class Enum>
struct EnumTable {
  std::span<const Named<Enum>> names;
  std::string_view later;
};

constexpr std::array kLrKinds = {Named{"linear", LrKind::Linear}, Named{"cosine", LrKind::Cosine},
                                 Named{"constant", LrKind::Constant},
                                 Named{"constant_with_warmup", LrKind::ConstantWithWarmup}};
constexpr std::array kReportTos = {Named{"none", ReportTo::None}, Named{"jsonl", ReportTo::Jsonl}};
constexpr std::array kSaveStrategies = {Named{"no", SaveStrategy::No}, Named{"steps", SaveStrategy::Steps}};
constexpr std::array kDevices = {Named{"auto", DeviceChoice::Auto}, Named{"host", DeviceChoice::Host},
                                 Named{"cuda", DeviceChoice::Cuda}};
constexpr std::array kComputes = {Named{"auto", ComputeChoice::Auto}, Named{"bf16", ComputeChoice::Bf16},
                                  Named{"fp16", ComputeChoice::Fp16}, Named{"fp32", ComputeChoice::Fp32}};
constexpr std::array kAccumulations = {Named{"auto", AccumulationChoice::Auto},
                                       Named{"horizontal", AccumulationChoice::Horizontal},
                                       Named{"vertical", AccumulationChoice::Vertical}};
constexpr std::array kUpdateSites = {Named{"auto", UpdateSiteChoice::Auto}, Named{"host", UpdateSiteChoice::Host},
                                     Named{"device", UpdateSiteChoice::Device},
                                     Named{"streamed", UpdateSiteChoice::Streamed}};
constexpr std::array kTravelCodes = {Named{"none", TravelCode::None}, Named{"int8", TravelCode::Int8},
                                     Named{"int4", TravelCode::Int4}};
constexpr std::array kBackends = {Named{"auto", IoBackendChoice::Auto}, Named{"uring", IoBackendChoice::Uring},
                                  Named{"threads", IoBackendChoice::Threads}};
constexpr std::array kTierNames = {Named{"device", TierKind::Device}, Named{"host", TierKind::Host},
                                   Named{"nvme", TierKind::Nvme}};

// The first of several names is the one that is written.
constexpr std::array kOptimizers = {Named{"adamw", OptimizerKind::AdamW},
                                    Named{"adamw_torch", OptimizerKind::AdamW},
                                    Named{"adamw_torch_fused", OptimizerKind::AdamW},
                                    Named{"adam", OptimizerKind::Adam},
                                    Named{"lion", OptimizerKind::Lion},
                                    Named{"lion_32bit", OptimizerKind::Lion},
                                    Named{"momentum", OptimizerKind::Momentum},
                                    Named{"nesterov", OptimizerKind::Nesterov},
                                    Named{"sgd", OptimizerKind::Sgd}};
constexpr std::array kMasters = {Named{"fp32", MasterEncoding::Fp32}, Named{"remainder", MasterEncoding::Remainder}};
constexpr std::array kMoments = {Named{"fp32", MomentEncoding::Fp32}, Named{"bf16", MomentEncoding::Bf16},
                                 Named{"8bit", MomentEncoding::Block8}};

EnumTable<OptimizerKind> table_of(OptimizerKind) {
  return {kOptimizers,
          " adafactor adagrad rmsprop adamw_8bit adamw_bnb_8bit paged_adamw_8bit paged_adamw_32bit lion_8bit "};
}
EnumTable<MasterEncoding> table_of(MasterEncoding) {
  return {kMasters, ""};
}
EnumTable<MomentEncoding> table_of(MomentEncoding) {
  return {kMoments, " fp8 4bit "};
}
EnumTable<LrKind> table_of(LrKind) {
  return {kLrKinds,
          " cosine_with_restarts polynomial inverse_sqrt cosine_with_min_lr warmup_stable_decay reduce_lr_on_plateau "};
}
EnumTable<ReportTo> table_of(ReportTo) {
  return {kReportTos, " tensorboard wandb all mlflow "};
}
EnumTable<SaveStrategy> table_of(SaveStrategy) {
  return {kSaveStrategies, " epoch best "};
}
EnumTable<DeviceChoice> table_of(DeviceChoice) {
  return {kDevices, ""};
}
EnumTable<ComputeChoice> table_of(ComputeChoice) {
  return {kComputes, ""};
}
EnumTable<AccumulationChoice> table_of(AccumulationChoice) {
  return {kAccumulations, ""};
}
EnumTable<UpdateSiteChoice> table_of(UpdateSiteChoice) {
  return {kUpdateSites, ""};
}
EnumTable<TravelCode> table_of(TravelCode) {
  return {kTravelCodes, ""};
}
EnumTable<IoBackendChoice> table_of(IoBackendChoice) {
  return {kBackends, " gds "};
}
EnumTable<TierKind> table_of(TierKind) {
  return {kTierNames, ""};
}

template <class Enum>
std::string choices_of(Enum) {
  std::string text;
  for (const auto& entry : table_of(Enum{}).names) text += (text.empty() ? "" : " | ") + std::string(entry.name);
  return text;
}

template <class Enum>
Enum enum_from(const std::string& text) {
  const EnumTable<Enum> table = table_of(Enum{});
  const std::string wanted = to_lower(text);
  for (const auto& entry : table.names) {
    if (entry.name == wanted) return entry.value;
  }
  if (!wanted.empty() && table.later.find(" " + wanted + " ") != std::string_view::npos) {
    throw ConfigError("not supported yet: " + in_quotes(text) + "; use " + choices_of(Enum{}));
  }
  throw ConfigError(in_quotes(text) + " is not one of " + choices_of(Enum{}));
}

template <class Enum>
std::string enum_name(Enum value) {
  for (const auto& entry : table_of(value).names) {
    if (entry.value == value) return std::string(entry.name);
  }
  contract_violation("value is named", "an enumeration value without a name", __FILE__, __LINE__);
}

}  // namespace

void read_value(const YAML::Node& node, AutoTier& out) {
  const std::string text = scalar_text(node);
  out = is_auto(text) ? AutoTier() : AutoTier(enum_from<TierKind>(text));
}

void read_value(const YAML::Node& node, LrKind& out) {
  out = enum_from<LrKind>(scalar_text(node));
}

void read_value(const YAML::Node& node, SaveStrategy& out) {
  out = enum_from<SaveStrategy>(scalar_text(node));
}

void read_value(const YAML::Node& node, DeviceChoice& out) {
  out = enum_from<DeviceChoice>(scalar_text(node));
}

void read_value(const YAML::Node& node, ComputeChoice& out) {
  out = enum_from<ComputeChoice>(scalar_text(node));
}

void read_value(const YAML::Node& node, AccumulationChoice& out) {
  out = enum_from<AccumulationChoice>(scalar_text(node));
}

void read_value(const YAML::Node& node, UpdateSiteChoice& out) {
  out = enum_from<UpdateSiteChoice>(scalar_text(node));
}
void read_value(const YAML::Node& node, TravelCode& out) {
  out = enum_from<TravelCode>(scalar_text(node));
}

void read_value(const YAML::Node& node, IoBackendChoice& out) {
  out = enum_from<IoBackendChoice>(scalar_text(node));
}

void read_value(const YAML::Node& node, OptimizerKind& out) {
  out = enum_from<OptimizerKind>(scalar_text(node));
}

void read_value(const YAML::Node& node, MasterEncoding& out) {
  out = enum_from<MasterEncoding>(scalar_text(node));
}

void read_value(const YAML::Node& node, MomentEncoding& out) {
  out = enum_from<MomentEncoding>(scalar_text(node));
}

void read_value(const YAML::Node& node, ReportTo& out) {
  // transformers takes a list; the only two that mean something here are [] and [jsonl].
  if (!node.IsSequence()) {
    out = enum_from<ReportTo>(scalar_text(node));
    return;
  }
  ReportTo result = ReportTo::None;
  for (const auto& entry : node) {
    const auto sink = enum_from<ReportTo>(scalar_text(entry));
    if (sink != ReportTo::None) result = sink;
  }
  out = result;
}

std::string write_value(const AutoTier& value) {
  return value ? enum_name(*value) : "auto";
}

std::string write_value(LrKind value) {
  return enum_name(value);
}

std::string write_value(ReportTo value) {
  return enum_name(value);
}

std::string write_value(SaveStrategy value) {
  return enum_name(value);
}

std::string write_value(DeviceChoice value) {
  return enum_name(value);
}

std::string write_value(ComputeChoice value) {
  return enum_name(value);
}

std::string write_value(AccumulationChoice value) {
  return enum_name(value);
}

std::string write_value(UpdateSiteChoice value) {
  return enum_name(value);
}
std::string write_value(TravelCode value) {
  return enum_name(value);
}

std::string write_value(IoBackendChoice value) {
  return enum_name(value);
}

std::string write_value(OptimizerKind value) {
  return enum_name(value);
}

std::string write_value(MasterEncoding value) {
  return enum_name(value);
}

std::string write_value(MomentEncoding value) {
  return enum_name(value);
}

std::string syntax_of(OptimizerKind kind) {
  return choices_of(kind);
}

std::string syntax_of(MasterEncoding encoding) {
  return choices_of(encoding);
}

std::string syntax_of(MomentEncoding encoding) {
  return choices_of(encoding);
}

std::string syntax_of(const AutoTier&) {
  return "auto | " + choices_of(TierKind{});
}

std::string syntax_of(LrKind kind) {
  return choices_of(kind);
}

std::string syntax_of(ReportTo sink) {
  return choices_of(sink);
}

std::string syntax_of(SaveStrategy strategy) {
  return choices_of(strategy);
}

std::string syntax_of(DeviceChoice device) {
  return choices_of(device);
}

std::string syntax_of(ComputeChoice type) {
  return choices_of(type);
}

std::string syntax_of(AccumulationChoice choice) {
  return choices_of(choice);
}

std::string syntax_of(UpdateSiteChoice choice) {
  return choices_of(choice);
}
std::string syntax_of(TravelCode choice) {
  return choices_of(choice);
}

std::string syntax_of(IoBackendChoice backend) {
  return choices_of(backend);
}

}  // namespace strata::engine
