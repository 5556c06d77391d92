// Loops that move the streams of a fused AdamW step with almost no arithmetic: what the memory allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace strata::bench {

// The arrays of a bf16 step: 2 + 4 + 4 + 4 bytes read, 2 + 4 + 4 + 4 written per element.
struct AdamStreams {
  std::uint16_t* param;
  const std::uint16_t* grad;
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
};

struct CeilingLoop {
  std::string_view name;
  void (*run)(const AdamStreams& streams, std::size_t begin, std::size_t end);
};

// The loops that the best vector unit of this machine has. Requires of run(): begin and end are multiples of 64 and the
// arrays 64-byte aligned.
std::span<const CeilingLoop> ceiling_loops();

}  // namespace strata::bench
