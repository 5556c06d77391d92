// Which instruction set the CPU kernels use: chosen at run time, by name, never by compile flags of a caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace strata::cpu_adam {

// All give the same bits (docs/numerics.md, 2), so the choice is one of speed. SSE4 is absent on purpose: it has no
// fused multiply-add, so such processors take Scalar.
enum class Isa : std::uint8_t { Auto, Scalar, Neon, Avx2, Avx512 };

// "auto", "scalar", "neon", "avx2", "avx512".
std::string_view name_of(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);

// Whether `isa` is compiled in and this processor and kernel can run it. Requires: not Auto.
bool can_run(Isa isa);

// What is compiled in and this processor and kernel can run, slowest first; never empty, Scalar is always first.
std::vector<Isa> usable_isas();

// The path to take: `requested` itself, or for Auto the environment's STRATA_ISA, or else the last of usable_isas().
// Never returns Auto. Throws: ConfigError when the name is unknown or this machine cannot run it.
Isa resolve_isa(Isa requested);

}  // namespace strata::cpu_adam
