#include "cpu_adam/math_scalar.h"

#include <cstring>
#include <type_traits>

#include "core/encodings.h"

namespace strata::cpu_adam::scalar {
namespace {

template <typename Destination, typename Source>
void cast_run(std::byte* destination, const std::byte* source, std::size_t numel) {
  if constexpr (std::is_same_v<Destination, Source>) {
    // A copy, not a decode and encode, which would make signalling NaNs quiet.
    if (numel != 0) std::memcpy(destination, source, numel * sizeof(typename Source::Stored));
  } else {
    const auto* from = stored_as<Source>(source);
    auto* to = stored_as<Destination>(destination);
    for (std::size_t i = 0; i < numel; ++i) to[i] = Destination::encode(Source::decode(from[i]));
  }
}

template <typename Destination, typename Source>
void accumulate_run(std::byte* destination, const std::byte* source, std::size_t numel) {
  const auto* from = stored_as<Source>(source);
  auto* to = stored_as<Destination>(destination);
  for (std::size_t i = 0; i < numel; ++i) {
    to[i] = Destination::encode(Destination::decode(to[i]) + Source::decode(from[i]));
  }
}

template <typename Encoding>
void add_squares_of(SumLanes& lanes, const std::byte* values, std::size_t first, std::size_t numel) {
  const auto* stored = stored_as<Encoding>(values);
  for (std::size_t i = first; i < numel; ++i) {
    const double value = static_cast<double>(Encoding::decode(stored[i]));
    lanes[i % kSumLanes] += value * value;
  }
}

template <typename Encoding>
double sum_of_squares(const std::byte* values, std::size_t numel) {
  SumLanes lanes = {};
  add_squares_of<Encoding>(lanes, values, 0, numel);
  return fold(lanes);
}

template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kCastRow = {&cast_run<To, F32>, &cast_run<To, Bf16>,
                                                                    &cast_run<To, F16>};
template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kAccumulateRow = {
    &accumulate_run<To, F32>, &accumulate_run<To, Bf16>, &accumulate_run<To, F16>};

constexpr ShardKernels kKernels = {
    .cast = {kCastRow<F32>, kCastRow<Bf16>, kCastRow<F16>},
    .accumulate = {kAccumulateRow<F32>, kAccumulateRow<Bf16>, kAccumulateRow<F16>},
    .sum_of_squares = {&sum_of_squares<F32>, &sum_of_squares<Bf16>, &sum_of_squares<F16>},
};

}  // namespace

const ShardKernels& kernels() {
  return kKernels;
}

void add_squares(SumLanes& lanes, std::size_t encoding, const std::byte* values, std::size_t first, std::size_t numel) {
  constexpr std::array kFunctions = {&add_squares_of<F32>, &add_squares_of<Bf16>, &add_squares_of<F16>};
  kFunctions[encoding](lanes, values, first, numel);
}

double fold(SumLanes lanes) {
  for (std::size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::size_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

}  // namespace strata::cpu_adam::scalar
