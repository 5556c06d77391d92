// Which Highway targets the vector sources are compiled for, and how one is chosen. Include before foreach_target.h.
#pragma once

#include "cpu_adam/isa.h"

// Targets without fused multiply-add are left out: Highway's MulAdd would round twice there (docs/numerics.md, 2). SVE
// is left out because its vectors have no length at compile time; such processors have NEON too.
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/detect_targets.h"

// Of HWY_TARGET, the one that a source is being compiled for; the rest of HWY_TARGETS has nothing in it.
#define STRATA_IS_VECTOR_TARGET (HWY_TARGET & (HWY_AVX2 | HWY_AVX3 | HWY_NEON))

#if HWY_TARGETS & HWY_AVX2
#define STRATA_ON_AVX2(call) N_AVX2::call
#else
#define STRATA_ON_AVX2(call) nullptr
#endif
#if HWY_TARGETS & HWY_AVX3
#define STRATA_ON_AVX512(call) N_AVX3::call
#else
#define STRATA_ON_AVX512(call) nullptr
#endif
#if HWY_TARGETS & HWY_NEON
#define STRATA_ON_NEON(call) N_NEON::call
#else
#define STRATA_ON_NEON(call) nullptr
#endif

// The result of `call` (a function that returns a pointer) in the namespace of `isa`; null where that is not compiled
// in or this processor cannot run it.
#define STRATA_ON_ISA(isa, call)                   \
  (!can_run(isa)          ? nullptr                \
   : (isa) == Isa::Avx2   ? STRATA_ON_AVX2(call)   \
   : (isa) == Isa::Avx512 ? STRATA_ON_AVX512(call) \
   : (isa) == Isa::Neon   ? STRATA_ON_NEON(call)   \
                          : nullptr)
