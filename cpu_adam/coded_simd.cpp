// Updates that decode and encode their moments on the way, in vectors; see update_simd.cpp. Nothing here has a scalar
// twin: the definition is decode, update, encode, which CpuOptimizer stages where these functions do not apply.
#include <algorithm>

#include "cpu_adam/simd_targets.h"
#include "cpu_adam/update_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/coded_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/vector_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

template <OptimizerKind kKind, typename Storage, typename Grad>
std::size_t update_bf16(const UpdateConstants& constants, const CodedRun& run) {
  const VectorStep<kKind, Storage, Grad> step(constants, run);
  Bf16Moments moments(run);
  return update_vectors<Storage>(step, moments, run.numel);
}

// A block's moments in fp32 while its scales are not known.
struct Stage {
  alignas(64) float values[2][kScaleBlock];
};

// 8-bit moments of one block: codes are decoded on load, what is stored goes to the stage.
struct StagedMoments {
  StagedMoments(const CodedRun& run, std::size_t block, Stage& block_stage)
      : codes{code_at(run, 0, block), code_at(run, 1, block)}, stage(block_stage) {
    for (std::size_t k = 0; k < 2; ++k) {
      factor[k] = hn::Set(Floats(), run.scales[k] == nullptr ? 0.0f : run.scales[k][block]);
      largest[k] = hn::Zero(Ints());
    }
  }
  static std::uint8_t* code_at(const CodedRun& run, std::size_t k, std::size_t block) {
    if (run.codes[k] == nullptr) return nullptr;
    return reinterpret_cast<std::uint8_t*>(run.codes[k]) + block * kScaleBlock;
  }

  HWY_INLINE void start(std::size_t) {}
  HWY_INLINE FloatVector load(std::size_t k, std::size_t i) const {
    const auto entry = k == 0 ? Coder<true>::entries_of(codes[0] + i) : Coder<false>::entries_of(codes[1] + i);
    return hn::Mul(entry, factor[k]);
  }
  HWY_INLINE void store(std::size_t k, std::size_t i, FloatVector value) {
    largest[k] = hn::Max(largest[k], hn::BitCast(Ints(), hn::Abs(value)));
    hn::Store(value, Floats(), stage.values[k] + i);
  }

  const std::uint8_t* codes[2];
  Stage& stage;
  FloatVector factor[2];
  IntVector largest[2];
};

template <bool kSigned>
HWY_INLINE float encode_staged(const float* values, IntVector largest, std::uint8_t* codes) {
  const BlockScale scale = block_scale(static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Ints(), largest))));
  Coder<kSigned>::encode_from(0, values, scale.inverse, codes, kScaleBlock);
  return scale.stored;
}

template <OptimizerKind kKind, typename Storage, typename Grad>
std::size_t update_block8(const UpdateConstants& constants, const CodedRun& run) {
  const VectorStep<kKind, Storage, Grad> step(constants, run);
  const std::size_t blocks = run.numel / kScaleBlock;
  Stage stage;
  for (std::size_t block = 0; block < blocks; ++block) {
    StagedMoments moments(run, block, stage);
    update_vectors<Storage>(step.shifted(block * kScaleBlock), moments, kScaleBlock);
    run.scales[0][block] =
        encode_staged<true>(stage.values[0], moments.largest[0], StagedMoments::code_at(run, 0, block));
    if constexpr (moments_of(kKind) == 2) {
      run.scales[1][block] =
          encode_staged<false>(stage.values[1], moments.largest[1], StagedMoments::code_at(run, 1, block));
    }
  }
  return blocks * kScaleBlock;
}

template <OptimizerKind kKind, typename Storage>
constexpr std::array<CodedKernels::Update, kEncodings> kBf16Row = {
    &update_bf16<kKind, Storage, F32>, &update_bf16<kKind, Storage, Bf16>, &update_bf16<kKind, Storage, F16>};
template <OptimizerKind kKind>
constexpr StorageTable<CodedKernels::Update> kBf16Rows = {kBf16Row<kKind, F32>, kBf16Row<kKind, Bf16>,
                                                          kBf16Row<kKind, F16>, kBf16Row<kKind, Bf16Remainder>};
template <OptimizerKind kKind, typename Storage>
constexpr std::array<CodedKernels::Update, kEncodings> kBlock8Row = {
    &update_block8<kKind, Storage, F32>, &update_block8<kKind, Storage, Bf16>, &update_block8<kKind, Storage, F16>};
template <OptimizerKind kKind>
constexpr StorageTable<CodedKernels::Update> kBlock8Rows = {kBlock8Row<kKind, F32>, kBlock8Row<kKind, Bf16>,
                                                            kBlock8Row<kKind, F16>, kBlock8Row<kKind, Bf16Remainder>};

// SGD without momentum has no moments and no row.
constexpr CodedKernels kKernels = {
    .bf16 = {kBf16Rows<OptimizerKind::AdamW>, kBf16Rows<OptimizerKind::Adam>, kBf16Rows<OptimizerKind::Lion>,
             kBf16Rows<OptimizerKind::Momentum>, kBf16Rows<OptimizerKind::Nesterov>},
    .block8 = {kBlock8Rows<OptimizerKind::AdamW>, kBlock8Rows<OptimizerKind::Adam>, kBlock8Rows<OptimizerKind::Lion>,
               kBlock8Rows<OptimizerKind::Momentum>, kBlock8Rows<OptimizerKind::Nesterov>}};

}  // namespace

const CodedKernels* coded_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const CodedKernels* simd_coded_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, coded_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
