// Engine::Impl: parameters, gradients and optimizer states by name, wherever they live.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/bytes.h"
#include "core/error.h"
#include "core/numeric.h"
#include "core/state_encodings.h"
#include "cpu_adam/state_conversion.h"
#include "engine/all_ranks.h"
#include "engine/engine_impl.h"

namespace strata::engine {
namespace {

constexpr const char* kParameter = "parameter";
constexpr const char* kGradient = "gradient";

TensorSpan span_of(std::span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()};
}

float rounded(float value, DType dtype) {
  if (dtype == DType::BF16) return bf16_to_float(float_to_bf16(value));
  if (dtype == DType::F16) return half_to_float(float_to_half(value));
  return value;
}

// Before anything is written: what no encoding of the tensor could hold.
void require_storable(const std::string& what, std::span<const float> values, DType dtype, MomentRange range) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(rounded(values[i], dtype)) && (range == MomentRange::Signed || values[i] >= 0)) continue;
    throw ConfigError(what + ": value " + std::to_string(i) + " is " + std::to_string(values[i]) +
                      ", which cannot be stored as " + std::string(name_of(dtype)) +
                      (range == MomentRange::Signed ? "" : " of squares"));
  }
}

}  // namespace

// The upper half of the file buffer, in parts of kConversionChunk fp32 elements.
TensorSpan Engine::Impl::scratch(std::size_t part, DType dtype, std::size_t numel) const {
  return {file_buffer_.data() + file_buffer_.bytes() / 2 + part * kConversionChunk * sizeof(float), dtype, numel};
}

void Engine::Impl::copy_master(const Named& named, std::uint64_t first, TensorSpan values) {
  const ShardSlice param = slice(named.group, shards_[named.group].param);
  if (config.param_type == DType::F32) return read_param(*store_, param, named.param, first, values);
  const std::span<const StateSpec> states = states_of(named.group);
  if (!states.empty() && states.front().name == "master") {
    return read_param(*store_, state_slice(named.group, 0), named.param, first, values);
  }
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan weight = scratch(0, config.param_type, n);
    read_param(*store_, param, named.param, first + done, weight);
    if (states.empty()) {
      host_math_.cast(values.subspan(done, n), weight);
      return;
    }
    const TensorSpan rest = scratch(1, DType::U16, n);
    read_param(*store_, state_slice(named.group, 0), named.param, first + done, rest);
    cpu_adam::join_master(*pool_, values.subspan(done, n), weight, rest);
  });
}

void Engine::Impl::copy_param(const Named& named, std::uint64_t first, TensorSpan destination) {
  if (destination.dtype == config.param_type) {
    return read_param(*store_, slice(named.group, shards_[named.group].param), named.param, first, destination);
  }
  if (destination.dtype == DType::F32) return copy_master(named, first, destination);
  in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan values = scratch(2, DType::F32, n);
    copy_master(named, first + done, values);
    host_math_.cast(destination.subspan(done, n), values);
  });
}

void Engine::Impl::copy_gradient(const Named& named, std::uint64_t first, TensorSpan values) {
  const ShardSlice from = slice(named.group, shards_[named.group].grad);
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan stored = scratch(0, store_->spec(from.shard).dtype, n);
    read_param(*store_, from, named.param, first + done, stored);
    const TensorSpan mean = values.subspan(done, n);
    host_math_.cast(mean, stored);
    for (std::size_t i = 0; i < n; ++i) mean.as<float>()[i] = static_cast<float>(mean.as<float>()[i] / grad_divisor_);
  });
}

const MomentSpec& Engine::Impl::moment(std::size_t s) const {
  return *std::find_if(moments_.begin(), moments_.end(),
                       [&](const MomentSpec& spec) { return spec.name == states_[s].name; });
}

std::size_t Engine::Impl::find_moment(const std::string& what) const {
  std::string names = std::string(kParameter) + ", " + kGradient;
  for (const MomentSpec& spec : moments_) {
    names += ", " + std::string(spec.name);
    for (std::size_t s = 0; s < states_.size(); ++s) {
      if (spec.name == what && states_[s].name == what) return s;
    }
  }
  throw ConfigError("no tensor is called " + what + (config.training ? "" : " in an engine made without training") +
                    "; there are " + names);
}

// A moment of 8 bits has its codes in one state and its scales in the next.
void Engine::Impl::copy_moment(const Named& named, std::size_t s, std::uint64_t first, TensorSpan values) {
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    std::array<TensorSpan, 2> stored{scratch(0, states_[s].dtype, n)};
    read_param(*store_, state_slice(named.group, s), named.param, first + done, stored[0]);
    const bool scaled = states_[s].dtype == DType::U8;
    if (scaled) {
      stored[1] = scratch(1, DType::F32, ceil_div(n, kScaleBlock));
      read_param(*store_, state_slice(named.group, s + 1), named.param, (first + done) / kScaleBlock, stored[1]);
    }
    cpu_adam::decode_moment(*pool_, moment(s).range, values.subspan(done, n), std::span(stored).first(scaled ? 2 : 1));
  });
}

void Engine::Impl::require_trained(const Named& named, const std::string& what) const {
  if (trainable(named.group)) return;
  throw ConfigError(decl(named).name + " is frozen (frozen_parameters): it has no " + what);
}

void Engine::Impl::require_gradient(const Named& named) const {
  require_trained(named, kGradient);
  if (!config.training) throw ConfigError("an engine made without training has no gradients");
  if (!(grad_divisor_ > 0)) throw ConfigError("there is no gradient before a step that had a token to learn from");
  const std::vector<std::size_t>& homes = plan.grad_homes;
  if (homes.empty() || std::count(homes.begin(), homes.end(), homes[named.group]) == 1) return;
  throw ConfigError("the gradient of " + decl(named).name +
                    " is gone: updates run during backward, and other layers have used its memory since; with "
                    "delay_update or max_grad_norm it stays until the next step");
}

std::vector<float> Engine::Impl::get(const std::string& what, const std::string& name) {
  const Named named = find_param(name);
  std::function<void(std::uint64_t, TensorSpan)> read;
  if (what == kParameter) {
    read = [&](std::uint64_t first, TensorSpan values) { copy_master(named, first, values); };
  } else if (what == kGradient) {
    require_gradient(named);
    read = [&](std::uint64_t first, TensorSpan values) { copy_gradient(named, first, values); };
  } else {
    const std::size_t s = find_moment(what);
    require_trained(named, what);
    read = [&, s](std::uint64_t first, TensorSpan values) { copy_moment(named, s, first, values); };
  }
  std::vector<float> values(decl(named).numel());
  Communicator& shards = collectives_.shards();  // each copy of the model has all of it
  const auto of_rank = [&](std::size_t rank) {
    const ValueRange range = values_in_row(compute_->layouts()[named.group], named.param, rank);
    return std::pair(range.first, std::span(values).subspan(range.first, range.numel));
  };
  on_every_rank(comm_, "read", [&] {
    use_schedule(Mode::None);
    const auto [first, mine] = of_rank(shards.rank());
    read(first, span_of(mine));
  });
  for (std::size_t rank = 0; rank < shards.world(); ++rank) {
    const std::span<float> part = of_rank(rank).second;
    if (!part.empty()) shards.broadcast(std::as_writable_bytes(part), rank);
  }
  return values;
}

// Calls fn(first, values) for chunks of those that the slice holds.
template <typename Fn>
void Engine::Impl::for_held(const Named& named, const ShardSlice& held, std::span<const float> values, Fn&& fn) {
  const ValueRange range = values_in(*store_, held, named.param);  // held.elements_per_value is 1
  in_chunks(range.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan chunk = scratch(2, DType::F32, n);
    std::memcpy(chunk.data, values.data() + range.first + done, chunk.bytes());
    fn(range.first + done, chunk);
  });
}

void Engine::Impl::set_master(const Named& named, std::span<const float> values) {
  const ShardSlice param = slice(named.group, shards_[named.group].param);
  for_held(named, param, values, [&](std::uint64_t first, TensorSpan chunk) {
    const TensorSpan weight = scratch(0, config.param_type, chunk.numel);
    host_math_.cast(weight, chunk);
    write_param(*store_, param, named.param, first, weight);
  });
  parameters_changed(named.group);
  const std::span<const StateSpec> states = states_of(named.group);
  if (states.empty() || (states.front().name != "master" && states.front().name != "remainder")) return;
  const ShardSlice master = state_slice(named.group, 0);
  for_held(named, master, values, [&](std::uint64_t first, TensorSpan chunk) {
    if (states.front().name == "master") return write_param(*store_, master, named.param, first, chunk);
    const TensorSpan rest = scratch(1, DType::U16, chunk.numel);
    cpu_adam::split_master(*pool_, scratch(0, DType::BF16, chunk.numel), rest, chunk);
    write_param(*store_, master, named.param, first, rest);
  });
}

void Engine::Impl::set_moment(const Named& named, std::size_t s, std::span<const float> values) {
  const ShardSlice codes = state_slice(named.group, s);
  for_held(named, codes, values, [&](std::uint64_t first, TensorSpan chunk) {
    const bool scaled = states_[s].dtype == DType::U8;
    const std::array<TensorSpan, 2> stored{scratch(0, states_[s].dtype, chunk.numel),
                                           scratch(1, DType::F32, ceil_div(chunk.numel, kScaleBlock))};
    cpu_adam::encode_moment(*pool_, moment(s).range, std::span(stored).first(scaled ? 2 : 1), chunk);
    write_param(*store_, codes, named.param, first, stored[0]);
    if (!scaled) return;
    write_param(*store_, state_slice(named.group, s + 1), named.param, first / kScaleBlock, stored[1]);
  });
}

void Engine::Impl::set(const std::string& what, const std::string& name, std::span<const float> values) {
  const Named named = find_param(name);
  if (what == kGradient) {
    throw ConfigError("a gradient is made and used up inside a step, so setting it would change nothing");
  }
  if (values.size() != decl(named).numel()) {
    throw ConfigError(what + " of " + name + " has " + std::to_string(decl(named).numel()) + " values, not " +
                      std::to_string(values.size()));
  }
  const bool is_parameter = what == kParameter;
  const std::size_t s = is_parameter ? 0 : find_moment(what);
  if (!is_parameter) require_trained(named, what);
  require_storable(what + " of " + name, values, is_parameter ? config.param_type : states_[s].dtype,
                   is_parameter ? MomentRange::Signed : moment(s).range);
  guarded([&] {
    on_every_rank(comm_, "write", [&] {
      use_schedule(Mode::None);
      is_parameter ? set_master(named, values) : set_moment(named, s, values);
    });
  });
}

}  // namespace strata::engine
