// Loops that move the streams of a fused optimizer step with almost no arithmetic: what the memory allows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace strata::bench {

// How many arrays of which width a step reads and writes in place, beside the bf16 gradient, which is read, and the
// bf16 parameter, which is written, or is one of the `twos` when the step reads it too.
struct StreamLayout {
  bool writes_param = true;
  std::size_t fours = 3;  // of 4 bytes per element
  std::size_t twos = 0;
  std::size_t ones = 0;

  bool operator==(const StreamLayout&) const = default;
  std::size_t bytes_per_element() const { return 2 + (writes_param ? 2 : 0) + 2 * (4 * fours + 2 * twos + ones); }
};

struct Streams {
  const std::uint8_t* grad = nullptr;
  std::uint8_t* param = nullptr;
  std::array<std::uint8_t*, 3> fours = {};
  std::array<std::uint8_t*, 4> twos = {};
  std::array<std::uint8_t*, 2> ones = {};
};

struct CeilingLoop {
  std::string_view name;
  // Leaves what is updated as it was and writes the gradient into the parameter.
  void (*run)(const Streams& streams, std::size_t begin, std::size_t end);
};

// The loops that the best vector unit of this machine has, for a layout of the optimizer's encodings. Requires of
// run(): begin and end are multiples of 64 and the arrays 64-byte aligned. Throws: ConfigError for other layouts.
std::span<const CeilingLoop> ceiling_loops(const StreamLayout& layout);

// STREAM's triad (McCalpin): a = b + 3 c, moving 12 bytes per element. The same requirements.
void stream_triad(float* a, const float* b, const float* c, std::size_t begin, std::size_t end);

}  // namespace strata::bench
