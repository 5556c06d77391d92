#include "cpu_adam/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/error.h"
#include "cpu_adam/simd_targets.h"
#include "hwy/targets.h"

namespace strata::cpu_adam {
namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 5> kNames = {
    {{Isa::Auto, "auto"}, {Isa::Scalar, "scalar"}, {Isa::Neon, "neon"}, {Isa::Avx2, "avx2"}, {Isa::Avx512, "avx512"}}};

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

bool can_run(Isa isa) {
  if (isa == Isa::Scalar) return true;
#if HWY_ARCH_X86
  // What the processor has and the operating system saves on a context switch.
  const auto usable = hwy::SupportedTargets() & HWY_TARGETS;
  return (isa == Isa::Avx2 && (usable & HWY_AVX2) != 0) || (isa == Isa::Avx512 && (usable & HWY_AVX3) != 0);
#else
  return isa == Isa::Neon && (HWY_TARGETS & HWY_NEON) != 0;  // part of every 64-bit Arm processor
#endif
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> usable = {Isa::Scalar};
  for (const Isa isa : {Isa::Neon, Isa::Avx2, Isa::Avx512}) {
    if (can_run(isa)) usable.push_back(isa);
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
