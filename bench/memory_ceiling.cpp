#include "bench/memory_ceiling.h"

#include <array>

#include "core/error.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/memory_ceiling.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strata::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::ScalableTag<std::uint8_t>;
constexpr std::size_t kTile = 64;  // elements: one cache line of an array of bytes

enum class Writes { Plain, StreamParam, StreamAll };

template <bool kStream>
HWY_INLINE void put(hn::Vec<Bytes> value, std::uint8_t* to) {
  if constexpr (kStream) {
    hn::Stream(value, Bytes(), to);
  } else {
    hn::Store(value, Bytes(), to);
  }
}

template <bool kStream>
HWY_INLINE void copy_tile(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes, hn::Vec<Bytes> zero) {
  const std::size_t n = hn::Lanes(Bytes());
  for (std::size_t i = 0; i < bytes; i += n) put<kStream>(hn::Add(hn::Load(Bytes(), from + i), zero), to + i);
}

// Reads `from` too, without effect on `to`.
template <bool kStream>
HWY_INLINE void mix_tile(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes, hn::Vec<Bytes> zero) {
  const std::size_t n = hn::Lanes(Bytes());
  for (std::size_t i = 0; i < bytes; i += n) {
    const auto nothing = hn::And(hn::Load(Bytes(), from + i), zero);
    put<kStream>(hn::Or(hn::Load(Bytes(), to + i), nothing), to + i);
  }
}

template <Writes kWrites, bool kWritesParam, std::size_t kFours, std::size_t kTwos, std::size_t kOnes>
void move_streams(const Streams& streams, std::size_t begin, std::size_t end) {
  const Streams s = streams;
  // Adding a zero that the compiler cannot see keeps it from turning loops into nothing or into calls of memmove.
  static volatile std::uint8_t hidden_zero = 0;
  const auto zero = hn::Set(Bytes(), hidden_zero);
  constexpr bool kAll = kWrites == Writes::StreamAll;
  for (std::size_t i = begin; i < end; i += kTile) {
    if constexpr (kWritesParam) {
      copy_tile<kWrites != Writes::Plain>(s.grad + 2 * i, s.param + 2 * i, 2 * kTile, zero);
    } else {
      mix_tile<kAll>(s.grad + 2 * i, s.twos[0] + 2 * i, 2 * kTile, zero);
    }
    for (std::size_t k = 0; k < kFours; ++k) copy_tile<kAll>(s.fours[k] + 4 * i, s.fours[k] + 4 * i, 4 * kTile, zero);
    for (std::size_t k = kWritesParam ? 0 : 1; k < kTwos; ++k)
      copy_tile<kAll>(s.twos[k] + 2 * i, s.twos[k] + 2 * i, 2 * kTile, zero);
    for (std::size_t k = 0; k < kOnes; ++k) copy_tile<kAll>(s.ones[k] + i, s.ones[k] + i, kTile, zero);
  }
  hwy::FlushStream();
}

template <bool kWritesParam, std::size_t kFours, std::size_t kTwos, std::size_t kOnes>
std::span<const CeilingLoop> loops_of() {
  static constexpr std::array<CeilingLoop, 3> kLoops = {
      {{"plain", &move_streams<Writes::Plain, kWritesParam, kFours, kTwos, kOnes>},
       {"param streamed", &move_streams<Writes::StreamParam, kWritesParam, kFours, kTwos, kOnes>},
       {"all streamed", &move_streams<Writes::StreamAll, kWritesParam, kFours, kTwos, kOnes>}}};
  return kLoops;
}

}  // namespace

// Empty for a layout that no combination of encodings has.
std::span<const CeilingLoop> loops(const StreamLayout& layout) {
  if (layout == StreamLayout{true, 3, 0, 0}) return loops_of<true, 3, 0, 0>();
  if (layout == StreamLayout{true, 1, 2, 0}) return loops_of<true, 1, 2, 0>();
  if (layout == StreamLayout{true, 1, 0, 2}) return loops_of<true, 1, 0, 2>();
  if (layout == StreamLayout{false, 2, 2, 0}) return loops_of<false, 2, 2, 0>();
  if (layout == StreamLayout{false, 0, 4, 0}) return loops_of<false, 0, 4, 0>();
  if (layout == StreamLayout{false, 0, 2, 2}) return loops_of<false, 0, 2, 2>();
  return {};
}

void triad(float* a, const float* b, const float* c, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<float> d;
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    hn::Stream(hn::MulAdd(hn::Set(d, 3.0f), hn::Load(d, c + i), hn::Load(d, b + i)), d, a + i);
  }
  hwy::FlushStream();
}

}  // namespace strata::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::bench {

HWY_EXPORT(loops);
HWY_EXPORT(triad);

std::span<const CeilingLoop> ceiling_loops(const StreamLayout& layout) {
  const std::span<const CeilingLoop> found = HWY_DYNAMIC_DISPATCH(loops)(layout);
  if (found.empty()) throw ConfigError("no loop moves the streams of this layout");
  return found;
}

void stream_triad(float* a, const float* b, const float* c, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(triad)(a, b, c, begin, end);
}

}  // namespace strata::bench
#endif  // HWY_ONCE
