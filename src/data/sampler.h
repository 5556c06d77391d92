// Which samples make up which micro-batch: a pure function of seed, epoch and position.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_file.h"

namespace strata::data {

// A right-padded micro-batch on the host. Positions t of row b hold tokens[b*T + t]; labels are shifted: labels[b*T +
// t] is the token that position t must predict (tokens[b*T + t + 1] where that one is trained), -100 elsewhere.
struct Batch {
  std::int64_t sequences = 0;        // B
  std::int64_t tokens_each = 0;      // T: the longest sample of the batch, at most max_tokens
  std::vector<std::int64_t> tokens;  // [B, T]
  std::vector<std::int64_t> labels;  // [B, T]
  std::int64_t target_tokens = 0;    // labels that are not -100
};

// Where a run stands; written into checkpoints.
struct SamplerState {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  // samples consumed of this epoch
};

// Shuffles every epoch anew from (seed, epoch) with a generator of its own (the same on every platform). Not
// thread-safe.
class Sampler {
 public:
  enum class Order : std::uint8_t { Shuffled, Sequential };
  // Samples longer than `max_tokens` are cut (cut_tokens() counts). Requires: batch_size > 0, max_tokens > 1.
  Sampler(const TokenFile& file, std::int64_t batch_size, std::int64_t max_tokens, std::uint64_t seed, Order order);

  // The next batch; crosses into the next epoch when one ends (the last batch of an epoch may be smaller, never empty).
  Batch next();
  // Micro-batches in one epoch.
  std::uint64_t batches_per_epoch() const;
  SamplerState state() const { return state_; }
  void restore(SamplerState state);
  std::uint64_t cut_tokens() const;

 private:
  void shuffle();
  const TokenFile* file_;
  std::int64_t batch_size_;
  std::int64_t max_tokens_;
  std::uint64_t seed_;
  Order order_;
  SamplerState state_;
  std::vector<std::uint32_t> order_of_epoch_;
};

}  // namespace strata::data
