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
  return update_vectors<Storage>(step, Bf16Moments(run), run.numel);
}

// A block's moments in fp32 while its scales are not known.
struct Stage {
  alignas(64) float values[2][kScaleBlock];
  float inverse[2];
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

// Blocks in a pipeline of two stages: one is decoded and updated while the one before is encoded. The update waits for
// the divider, the encoding for nothing, so the two in one loop take little more than the longer of them.
template <OptimizerKind kKind, typename Storage, typename Grad>
class BlockPipeline {
 public:
  BlockPipeline(const UpdateConstants& constants, const CodedRun& run)
      : run_(run), step_(constants, run), stream_(can_stream<Storage>(step_)) {}

  void run_blocks(std::size_t blocks) {
    for (std::size_t block = 0; block <= blocks; ++block) {
      const bool updates = block<blocks, encodes = block> 0;
      if (updates && encodes) {
        stream_ ? tile<true, true, true>(block) : tile<true, true, false>(block);
      } else if (updates) {
        stream_ ? tile<true, false, true>(block) : tile<true, false, false>(block);
      } else if (encodes) {
        tile<false, true, false>(block);
      }
    }
  }

 private:
  static constexpr std::size_t kMoments = moments_of(kKind);
  static constexpr bool kCanStream = std::is_same_v<Storage, Bf16> || std::is_same_v<Storage, F16>;

  // Updates `block` and encodes the one before it.
  template <bool kUpdates, bool kEncodes, bool kStream>
  void tile(std::size_t block) {
    Stage& now = stages_[block % 2];
    Stage& before = stages_[(block + 1) % 2];
    StagedMoments moments(run_, kUpdates ? block : 0, now);
    // The step's pointers are those of the run; the moments count from the block's start.
    const std::size_t first = block * kScaleBlock;
    std::uint8_t* codes[2] = {};
    FloatVector inverse[2];
    for (std::size_t k = 0; k < kMoments; ++k) {
      if constexpr (kEncodes) codes[k] = StagedMoments::code_at(run_, k, block - 1);
      inverse[k] = hn::Set(Floats(), kEncodes ? before.inverse[k] : 0.0f);
    }
    const auto step = step_.shifted(first);
    for (std::size_t i = 0; i < kScaleBlock; i += 2 * kLanes) {
      if constexpr (kUpdates) update_pair<Storage, kStream && kCanStream>(step, moments, i);
      if constexpr (kEncodes) {
        for (std::size_t j = i; j < i + 2 * kLanes; j += kLanes) {
          Coder<true>::encode_vector(before.values[0] + j, inverse[0], codes[0] + j);
          if constexpr (kMoments == 2) Coder<false>::encode_vector(before.values[1] + j, inverse[1], codes[1] + j);
        }
      }
    }
    for (std::size_t k = 0; k < kMoments; ++k) {
      // Without an inverse there is nothing to encode: the block is zero, tiny or broken.
      if (kEncodes && before.inverse[k] == 0) std::fill_n(codes[k], kScaleBlock, std::uint8_t{0});
      if constexpr (kUpdates) {
        const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Ints(), moments.largest[k])));
        const BlockScale scale = block_scale(bits);
        run_.scales[k][block] = scale.stored;
        now.inverse[k] = scale.inverse;
      }
    }
  }

  const CodedRun& run_;
  const VectorStep<kKind, Storage, Grad> step_;
  const bool stream_;
  Stage stages_[2];
};

template <OptimizerKind kKind, typename Storage, typename Grad>
std::size_t update_block8(const UpdateConstants& constants, const CodedRun& run) {
  const std::size_t blocks = run.numel / kScaleBlock;
  BlockPipeline<kKind, Storage, Grad>(constants, run).run_blocks(blocks);
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
