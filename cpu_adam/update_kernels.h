// The loops of an optimizer step, one table of them per instruction set. Single-threaded; CpuOptimizer splits the work.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/optimizer_config.h"
#include "core/state_encodings.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {

// How a parameter and its fp32 master are stored: the three element types, 16-bit ones beside an fp32 master, and
// [Note: remainder].
struct Bf16Remainder {
  using Stored = std::uint16_t;
  static constexpr std::size_t kIndex = 3;
};
inline constexpr std::size_t kStorages = 4;

// Index of a storage in the tables below. Throws: ContractViolation for other types.
std::size_t storage_index(DType param, MasterEncoding master);

// Tables of functions: [kind][storage of the parameter][gradient type].
template <typename Function>
using StorageTable = std::array<std::array<Function, kEncodings>, kStorages>;
template <typename Function>
using KindTable = std::array<StorageTable<Function>, kOptimizerKinds>;

// Consecutive elements of one shard that are treated alike. Pointers are aligned to their element type and no further.
struct UpdateRun {
  std::byte* param = nullptr;  // not used where the parameter is the master
  const std::byte* grad = nullptr;
  std::byte* master = nullptr;         // fp32, or the remainder
  std::array<float*, 2> moments = {};  // those that the kind has
  std::size_t numel = 0;
  float decay = 1;  // decay or no_decay of the constants
};

// Every function below touches exactly numel elements of each array, not a byte around them. Parameters may be written
// past the cache: call hwy::FlushStream() before a run counts as done.

struct UpdateKernels {
  using Update = void (*)(const UpdateConstants& constants, const UpdateRun& run);
  KindTable<Update> update = {};
};

// A run whose moments are not fp32; `moments` is not used.
struct CodedRun : UpdateRun {
  std::array<std::byte*, 2> codes = {};  // bf16, or 8 bits
  std::array<float*, 2> scales = {};     // of 8-bit codes, one per kScaleBlock elements
  RandomKey key;                         // of bf16: [Note: random words]
  std::uint32_t first_index = 0;         // low half of the first element's index; the run does not leave its 2^32
};

// Decode, update and encode without a stop in memory, for as many whole vectors (bf16) or blocks (8 bits) from the
// run's start as there are. They return the elements done. Null for kinds without moments.
struct CodedKernels {
  using Update = std::size_t (*)(const UpdateConstants& constants, const CodedRun& run);
  KindTable<Update> bf16 = {};
  KindTable<Update> block8 = {};  // requires: the run starts on the grid of blocks
};

// Two moments, or one, to bf16 by [Note: random words].
struct StochasticRun {
  std::array<const float*, 2> values = {};
  std::array<std::uint16_t*, 2> codes = {};
  std::size_t moments = 0;
  std::size_t numel = 0;
  RandomKey key;
  std::uint32_t first_index = 0;  // as above
};

// Between fp32 and the other encodings of states; definitions in core/state_encodings.h.
struct StateKernels {
  using DecodeBlock = void (*)(const std::uint8_t* codes, float scale, float* values, std::size_t numel);
  // Requires: numel <= kScaleBlock. Returns the block's scale.
  using EncodeBlock = float (*)(const float* values, std::uint8_t* codes, std::size_t numel);

  void (*round_stochastically)(const StochasticRun& run) = nullptr;
  std::array<DecodeBlock, 2> decode_block = {};  // [MomentRange]
  std::array<EncodeBlock, 2> encode_block = {};  // [MomentRange]
  void (*join_master)(const std::uint16_t* param, const std::uint16_t* remainder, float* master,
                      std::size_t numel) = nullptr;
  void (*split_master)(const float* master, std::uint16_t* param, std::uint16_t* remainder,
                       std::size_t numel) = nullptr;
};

// Requires: can_run(isa).
const UpdateKernels& update_kernels(Isa isa);
const StateKernels& state_kernels(Isa isa);

// Null where `isa` is not a vector unit that this processor can run.
const UpdateKernels* simd_update_kernels(Isa isa);
const StateKernels* simd_state_kernels(Isa isa);
const CodedKernels* simd_coded_kernels(Isa isa);

namespace scalar {
// The definition, one element at a time. The vector code must equal it bit for bit and calls it for the elements that
// do not fill a vector. No templates here: an inline copy made in a file that is also compiled for AVX-512 could be the
// one the linker keeps.
const UpdateKernels& update_kernels();
const StateKernels& state_kernels();
}  // namespace scalar

}  // namespace strata::cpu_adam
