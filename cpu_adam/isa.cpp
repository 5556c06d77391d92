#include "cpu_adam/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/error.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {
namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 4> kNames = {
    {{Isa::Auto, "auto"}, {Isa::Scalar, "scalar"}, {Isa::Avx2, "avx2"}, {Isa::Avx512, "avx512"}}};

std::string usable_names() {
  std::string names;
  for (const Isa isa : usable_isas()) {
    if (!names.empty()) names += ", ";
    names += name_of(isa);
  }
  return names;
}

}  // namespace

std::string_view name_of(Isa isa) {
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.first == isa; });
  STRATA_EXPECTS(found != kNames.end(), "not an Isa");
  return found->second;
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const auto& [isa, isa_name] : kNames) {
    if (isa_name == name) return isa;
  }
  return std::nullopt;
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> usable = {Isa::Scalar};
  for (const Isa isa : {Isa::Avx2, Isa::Avx512}) {
    if (simd_kernels(isa) != nullptr) usable.push_back(isa);
  }
  return usable;
}

Isa resolve_isa(Isa requested) {
  Isa isa = requested;
  if (const char* name = std::getenv("STRATA_ISA"); isa == Isa::Auto && name != nullptr) {
    const std::optional<Isa> named = isa_from_name(name);
    if (!named) {
      throw ConfigError("STRATA_ISA=" + std::string(name) +
                        " is not an instruction set; this machine can run: " + usable_names());
    }
    isa = *named;
  }
  if (isa == Isa::Auto) return usable_isas().back();
  const std::vector<Isa> usable = usable_isas();
  if (std::find(usable.begin(), usable.end(), isa) == usable.end()) {
    throw ConfigError("instruction set " + std::string(name_of(isa)) +
                      " was asked for, but this machine can run only: " + usable_names() + "; unset STRATA_ISA");
  }
  return isa;
}

}  // namespace strata::cpu_adam
