#include "engine/state_files.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/error.h"
#include "core/state_encodings.h"
#include "cpu_adam/state_conversion.h"
#include "engine/shard_files.h"

namespace strata::engine {
namespace {

constexpr std::size_t kSlotBytes = kConversionChunk * sizeof(float);

}  // namespace

std::string state_tensor_name(const std::string& state, const std::string& param) {
  return state + "." + param;
}

std::vector<std::int64_t> state_tensor_shape(const StateSpec& state, const zero::ParamDecl& param) {
  if (state.elements_per_value == 1) return param.shape;
  return {static_cast<std::int64_t>(state.values_for(static_cast<std::size_t>(param.numel())))};
}

StateReader::StateReader(const hf::TensorCatalog& catalog, OptimizerKind kind, Parallel& parallel, ShardMath& math,
                         std::span<std::byte> scratch)
    : catalog_(catalog), moments_(moment_specs(kind)), parallel_(parallel), math_(math), scratch_(scratch) {
  STRATA_EXPECTS(scratch.size() >= kScratchBytes, "the scratch is too small");
}

// Slots of kConversionChunk fp32 elements; the rest of the scratch is the buffer of reads that convert.
TensorSpan StateReader::scratch(std::size_t slot, DType dtype, std::size_t numel) const {
  return {scratch_.data() + slot * kSlotBytes, dtype, numel};
}

const hf::TensorInfo* StateReader::find(const std::string& state, const zero::ParamDecl& param) const {
  return catalog_.find(state_tensor_name(state, param.name));
}

const hf::TensorInfo& StateReader::need(const std::string& state, const zero::ParamDecl& param) const {
  const hf::TensorInfo* tensor = find(state, param);
  if (tensor == nullptr) {
    const bool weight_alone = (find("master", param) != nullptr || find("param", param) != nullptr) &&
                              std::ranges::any_of(moments_, [&](const MomentSpec& m) { return m.name == state; });
    throw DataError("the checkpoint has no " + state_tensor_name(state, param.name) +
                    (weight_alone
                         ? ": in the run that saved it the parameter was frozen (frozen_parameters), or its "
                           "optimizer another one; freeze it again, or begin anew from that run's exported model"
                         : ""));
  }
  const std::size_t per_value = state.ends_with("_scale") ? kScaleBlock : 1;
  const std::vector<std::int64_t> shape = state_tensor_shape({state, tensor->dtype, per_value}, param);
  if (tensor->shape != shape) {
    throw DataError("the checkpoint's " + state_tensor_name(state, param.name) + " has shape " +
                    shape_text(tensor->shape) + ", the model needs " + shape_text(shape));
  }
  return *tensor;
}

void StateReader::read(const hf::TensorInfo& tensor, std::uint64_t first, TensorSpan destination) {
  read_converted(catalog_, tensor, first, destination, scratch_.subspan(6 * kSlotBytes), math_);
}

void StateReader::master(const zero::ParamDecl& param, std::uint64_t first, TensorSpan values) {
  if (find("master", param) != nullptr) return read(need("master", param), first, values);
  // Frozen in the run that saved it: nothing is lacking.
  if (find("remainder", param) == nullptr) return read(need("param", param), first, values);
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan weight = scratch(0, DType::BF16, n);
    const TensorSpan rest = scratch(1, DType::U16, n);
    read(need("param", param), first + done, weight);
    read(need("remainder", param), first + done, rest);
    cpu_adam::join_master(parallel_, values.subspan(done, n), weight, rest);
  });
}

void StateReader::param(const zero::ParamDecl& param, std::uint64_t first, TensorSpan destination) {
  const hf::TensorInfo* weight = find("param", param);
  if (weight != nullptr && weight->dtype == destination.dtype) return read(need("param", param), first, destination);
  if (destination.dtype == DType::F32) return master(param, first, destination);
  in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan values = scratch(2, DType::F32, n);
    master(param, first + done, values);
    math_.cast(destination.subspan(done, n), values);
  });
}

void StateReader::remainder(const zero::ParamDecl& param, std::uint64_t first, TensorSpan destination) {
  if (find("remainder", param) != nullptr) return read(need("remainder", param), first, destination);
  in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan values = scratch(2, DType::F32, n);
    master(param, first + done, values);
    cpu_adam::split_master(parallel_, scratch(3, DType::BF16, n), destination.subspan(done, n), values);
  });
}

void StateReader::moment(const MomentSpec& spec, const zero::ParamDecl& param, std::uint64_t first, TensorSpan values) {
  const std::string name(spec.name);
  const hf::TensorInfo& tensor = need(name, param);
  if (tensor.dtype != DType::U8) return read(tensor, first, values);
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const std::uint64_t begin = first + done;
    const std::array<TensorSpan, 2> stored{scratch(0, DType::U8, n), scratch(1, DType::F32, ceil_div(n, kScaleBlock))};
    read(tensor, begin, stored[0]);
    read(need(name + "_scale", param), begin / kScaleBlock, stored[1]);
    cpu_adam::decode_moment(parallel_, spec.range, values.subspan(done, n), stored);
  });
}

// Codes or scales of a moment that the checkpoint holds unpacked.
void StateReader::encoded_moment(const MomentSpec& spec, const StateSpec& state, const zero::ParamDecl& param,
                                 std::uint64_t first, TensorSpan destination) {
  const std::size_t per_value = state.elements_per_value;
  const std::uint64_t end = static_cast<std::uint64_t>(param.numel());
  in_chunks(destination.numel, kConversionChunk / per_value, [&](std::size_t done, std::size_t n) {
    const std::uint64_t begin = (first + done) * per_value;
    const auto elements = static_cast<std::size_t>(std::min<std::uint64_t>(n * per_value, end - begin));
    const TensorSpan values = scratch(2, DType::F32, elements);
    moment(spec, param, begin, values);
    const TensorSpan part = destination.subspan(done, n);
    const TensorSpan codes = per_value == 1 ? part : scratch(3, DType::U8, elements);
    const TensorSpan scales = per_value == 1 ? scratch(4, DType::F32, ceil_div(elements, kScaleBlock)) : part;
    const std::array<TensorSpan, 2> stored{codes, scales};
    cpu_adam::encode_moment(parallel_, spec.range, stored, values);
  });
}

void StateReader::state(const StateSpec& state, const zero::ParamDecl& param, std::uint64_t first,
                        TensorSpan destination) {
  if (state.name == "master") return master(param, first, destination);
  if (state.name == "remainder") return remainder(param, first, destination);
  const hf::TensorInfo* tensor = find(state.name, param);
  if (tensor != nullptr && tensor->dtype == state.dtype) return read(need(state.name, param), first, destination);
  for (const MomentSpec& spec : moments_) {
    const std::string name(spec.name);
    if (state.name != name && state.name != name + "_scale") continue;
    if (state.dtype == DType::U8 || state.elements_per_value > 1) {
      return encoded_moment(spec, state, param, first, destination);
    }
    if (state.dtype == DType::F32) return moment(spec, param, first, destination);
    return in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
      const TensorSpan values = scratch(2, DType::F32, n);
      moment(spec, param, first + done, values);
      math_.cast(destination.subspan(done, n), values);
    });
  }
  (void)need(state.name, param);  // throws: what optimizer would it belong to?
}

}  // namespace strata::engine
