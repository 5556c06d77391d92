#include "cpu_adam/state_conversion.h"

#include <algorithm>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "cpu_adam/cpu_shard_math.h"
#include "cpu_adam/update_kernels.h"

namespace strata::cpu_adam {
namespace {

constexpr std::size_t kGrain = 65536;

void expect(TensorSpan span, DType dtype, std::size_t numel, const char* what) {
  STRATA_EXPECTS(span.dtype == dtype && span.numel == numel,
                 std::string(what) + " must be " + std::string(name_of(dtype)) + " with " + std::to_string(numel) +
                     " values, not " + std::string(name_of(span.dtype)) + " with " + std::to_string(span.numel));
}

bool is_block8(std::span<const TensorSpan> stored, std::size_t numel) {
  STRATA_EXPECTS(stored.size() == 1 || stored.size() == 2,
                 "a moment is one span, or codes and scales, not " + std::to_string(stored.size()) + " spans");
  if (stored.size() == 1) return false;
  expect(stored[0], DType::U8, numel, "codes");
  expect(stored[1], DType::F32, ceil_div(numel, kScaleBlock), "scales");
  return true;
}

template <typename Fn>
void for_each_block(Parallel& parallel, std::size_t numel, Fn&& fn) {
  parallel.parallel_for(numel, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t first = begin; first < end; first += kScaleBlock) {
      fn(first, std::min(kScaleBlock, end - first));
    }
  });
}

}  // namespace

void join_master(Parallel& parallel, TensorSpan master, TensorSpan param, TensorSpan remainder) {
  expect(master, DType::F32, param.numel, "master");
  expect(param, DType::BF16, param.numel, "parameter");
  expect(remainder, DType::U16, param.numel, "remainder");
  const StateKernels& kernels = state_kernels(resolve_isa(Isa::Auto));
  parallel.parallel_for(param.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    kernels.join_master(param.as<std::uint16_t>() + begin, remainder.as<std::uint16_t>() + begin,
                        master.as<float>() + begin, end - begin);
  });
}

void split_master(Parallel& parallel, TensorSpan param, TensorSpan remainder, TensorSpan master) {
  expect(master, DType::F32, param.numel, "master");
  expect(param, DType::BF16, param.numel, "parameter");
  expect(remainder, DType::U16, param.numel, "remainder");
  const StateKernels& kernels = state_kernels(resolve_isa(Isa::Auto));
  parallel.parallel_for(param.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    kernels.split_master(master.as<float>() + begin, param.as<std::uint16_t>() + begin,
                         remainder.as<std::uint16_t>() + begin, end - begin);
  });
}

void decode_moment(Parallel& parallel, MomentRange range, TensorSpan values, std::span<const TensorSpan> stored) {
  expect(values, DType::F32, values.numel, "a decoded moment");
  if (!is_block8(stored, values.numel)) return CpuShardMath(parallel).cast(values, stored[0]);
  const auto decode = state_kernels(resolve_isa(Isa::Auto)).decode_block[static_cast<std::size_t>(range)];
  for_each_block(parallel, values.numel, [&](std::size_t first, std::size_t numel) {
    decode(stored[0].as<std::uint8_t>() + first, stored[1].as<float>()[first / kScaleBlock], values.as<float>() + first,
           numel);
  });
}

void encode_moment(Parallel& parallel, MomentRange range, std::span<const TensorSpan> stored, TensorSpan values) {
  expect(values, DType::F32, values.numel, "a decoded moment");
  if (!is_block8(stored, values.numel)) return CpuShardMath(parallel).cast(stored[0], values);
  const auto encode = state_kernels(resolve_isa(Isa::Auto)).encode_block[static_cast<std::size_t>(range)];
  for_each_block(parallel, values.numel, [&](std::size_t first, std::size_t numel) {
    stored[1].as<float>()[first / kScaleBlock] =
        encode(values.as<float>() + first, stored[0].as<std::uint8_t>() + first, numel);
  });
}

}  // namespace strata::cpu_adam
