#include "bench/memory_ceiling.h"

#include <array>

#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/memory_ceiling.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strata::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

enum class Writes { Plain, StreamParam, StreamAll };

template <Writes kWrites>
void move_streams(const AdamStreams& s, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<float> df;
  const hn::ScalableTag<std::uint16_t> dh;
  const std::size_t n = hn::Lanes(df);
  const auto write = [&](auto value, auto d, auto* to) HWY_ATTR {
    if constexpr (kWrites == Writes::StreamAll) {
      hn::Stream(value, d, to);
    } else {
      hn::Store(value, d, to);
    }
  };
  for (std::size_t i = begin; i < end; i += 2 * n) {
    // One addition per vector keeps the compiler from turning the loops into calls of memmove.
    const auto grad = hn::Load(dh, s.grad + i);
    if constexpr (kWrites == Writes::Plain) {
      hn::Store(hn::Add(grad, hn::Set(dh, 1)), dh, s.param + i);
    } else {
      hn::Stream(hn::Add(grad, hn::Set(dh, 1)), dh, s.param + i);
    }
    for (float* array : {s.master, s.exp_avg, s.exp_avg_sq}) {
      write(hn::Add(hn::Load(df, array + i), hn::Set(df, 1.0f)), df, array + i);
      write(hn::Add(hn::Load(df, array + i + n), hn::Set(df, 1.0f)), df, array + i + n);
    }
  }
  hwy::FlushStream();
}

}  // namespace

void move_plain(const AdamStreams& s, std::size_t begin, std::size_t end) {
  move_streams<Writes::Plain>(s, begin, end);
}
void move_stream_param(const AdamStreams& s, std::size_t begin, std::size_t end) {
  move_streams<Writes::StreamParam>(s, begin, end);
}
void move_stream_all(const AdamStreams& s, std::size_t begin, std::size_t end) {
  move_streams<Writes::StreamAll>(s, begin, end);
}

}  // namespace strata::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::bench {

HWY_EXPORT(move_plain);
HWY_EXPORT(move_stream_param);
HWY_EXPORT(move_stream_all);

std::span<const CeilingLoop> ceiling_loops() {
  static constexpr std::array<CeilingLoop, 3> kLoops = {
      {{"plain", [](const AdamStreams& s, std::size_t begin,
                    std::size_t end) { HWY_DYNAMIC_DISPATCH(move_plain)
                                       (s, begin, end); }},
       {"param streamed", [](const AdamStreams& s, std::size_t begin,
                             std::size_t end) { HWY_DYNAMIC_DISPATCH(move_stream_param)
                                                (s, begin, end); }},
       {"all streamed", [](const AdamStreams& s, std::size_t begin, std::size_t end) {
          HWY_DYNAMIC_DISPATCH(move_stream_all)(s, begin, end);
        }}}};
  return kLoops;
}

}  // namespace strata::bench
#endif  // HWY_ONCE
