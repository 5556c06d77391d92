// What ZeRO holds and sends according to its authors (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", 2020, arXiv:1910.02054, sections 5 and 7), with micro-batches.
#pragma once

#include <cstdint>

#include "zero/visits.h"

namespace strata::bench {

struct ZeroSetting {
  int stage = 3;
  std::uint64_t ranks = 1;
  std::uint64_t elements = 0;  // parameters and the padding that makes them divisible
  std::uint64_t micro_batches = 1;
  zero::Accumulation accumulation = zero::Accumulation::Horizontal;
};

// Bytes per rank of weights, gradients and optimizer states, of so many bytes an element each.
double published_held_bytes(const ZeroSetting& setting, double weight, double gradient, double states);

// Bytes that a rank sends in a step. Stages 0 and 1 move 2 times the elements, stage 2 once per micro-batch and once
// more, stage 3 three times per micro-batch, or three times with vertical accumulation; all times (N-1)/N. `weight`
// bytes an element travel in gathers of weights, `gradient` where the sum of a rank's micro-batches travels, in stage 0
// there and back; a micro-batch's own gradient travels like a weight.
double published_sent_bytes(const ZeroSetting& setting, double weight, double gradient);

}  // namespace strata::bench
