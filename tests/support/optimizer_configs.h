// Every OptimizerConfig, for tests that hold for all.
#pragma once

#include <string>
#include <vector>

#include "core/optimizer_config.h"

namespace strata::test {

inline std::vector<OptimizerConfig> optimizer_configs() {
  std::vector<OptimizerConfig> configs;
  for (std::size_t kind = 0; kind < kOptimizerKinds; ++kind) {
    for (const MasterEncoding master : {MasterEncoding::Fp32, MasterEncoding::Remainder}) {
      for (const MomentEncoding moments : {MomentEncoding::Fp32, MomentEncoding::Bf16, MomentEncoding::Block8}) {
        configs.push_back({static_cast<OptimizerKind>(kind), master, moments});
      }
    }
  }
  return configs;
}

// "adamw_master_fp32_moments_8bit"
inline std::string text_of(const OptimizerConfig& config) {
  return std::string(name_of(config.kind)) + "_master_" + std::string(name_of(config.master)) + "_moments_" +
         std::string(name_of(config.moments));
}

}  // namespace strata::test
