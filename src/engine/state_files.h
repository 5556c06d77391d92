// Optimizer states in a checkpoint: by parameter, as they are stored, converted where a run stores them otherwise.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/optimizer_config.h"
#include "core/parallel.h"
#include "hf/safetensors.h"
#include "zero/group_decl.h"

namespace strata::engine {

inline constexpr const char* kStatesFile = "states.safetensors";

// [Note: checkpoint tensors] "master.P" is parameter P in fp32; a run with a remainder has "param.P" and "remainder.P"
// instead, which together are the same. A frozen parameter has no states: "param.P" in its own type, or "master.P" in a
// run with fp32 weights. Moments follow under their own names; one of 8 bits has its scales beside it,
// one per block of 256 elements of the parameter.
std::string state_tensor_name(const std::string& state, const std::string& param);
std::vector<std::int64_t> state_tensor_shape(const StateSpec& state, const zero::ParamDecl& param);

// Elements of the states of a checkpoint in any encoding, whatever it holds. One thread. References must outlive it.
// Ranges begin at multiples of 256 elements. All throw DataError when the checkpoint lacks what is needed or has it in
// another shape.
class StateReader {
 public:
  // `scratch`: at least kScratchBytes.
  static constexpr std::size_t kScratchBytes = std::size_t{3} << 20;
  StateReader(const hf::TensorCatalog& catalog, OptimizerKind kind, Parallel& parallel, ShardMath& math,
              std::span<std::byte> scratch);

  // The parameter itself, in the destination's type, from `first` on.
  void param(const zero::ParamDecl& param, std::uint64_t first, TensorSpan destination);
  // Values of a state from value `first` on. `destination` has the state's type.
  void state(const StateSpec& state, const zero::ParamDecl& param, std::uint64_t first, TensorSpan destination);

 private:
  const hf::TensorInfo* find(const std::string& state, const zero::ParamDecl& param) const;
  const hf::TensorInfo& need(const std::string& state, const zero::ParamDecl& param) const;
  void read(const hf::TensorInfo& tensor, std::uint64_t first, TensorSpan destination);
  void master(const zero::ParamDecl& param, std::uint64_t first, TensorSpan values);
  void moment(const MomentSpec& spec, const zero::ParamDecl& param, std::uint64_t first, TensorSpan values);
  void remainder(const zero::ParamDecl& param, std::uint64_t first, TensorSpan destination);
  void encoded_moment(const MomentSpec& spec, const StateSpec& state, const zero::ParamDecl& param, std::uint64_t first,
                      TensorSpan destination);
  TensorSpan scratch(std::size_t slot, DType dtype, std::size_t numel) const;

  const hf::TensorCatalog& catalog_;
  const std::vector<MomentSpec> moments_;
  Parallel& parallel_;
  ShardMath& math_;
  std::span<std::byte> scratch_;
};

}  // namespace strata::engine
