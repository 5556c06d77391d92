// Which samples make up which micro-batch: a pure function of seed, epoch and position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

// Where a run stands; written into checkpoints. The same on every rank, and it names none.
struct SamplerState {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  // samples consumed of this epoch
};

// One rank's part of a global batch.
struct Share {
  std::size_t rank = 0;
  std::size_t ranks = 1;
  std::size_t micro_batches = 1;  // of each rank
};

struct GlobalBatch {
  std::vector<Batch> micro_batches;  // of this rank
  std::uint64_t tokens = 0;          // of all ranks, padding included
};

// Shuffles every epoch anew from (seed, epoch) with a generator of its own (the same on every platform). Not
// thread-safe.
//
// [Note: global batches] With k micro-batches on each of N ranks and b samples in each, a global batch is the next k N
// b samples of the epoch's order, or what is left of it: none crosses into the next epoch. Global micro-batch j N + r,
// the j-th of rank r, takes samples [b (j N + r), b (j N + r + 1)) of them. So what is added up depends on k N alone,
// and each sample counts once an epoch. Micro-batches beyond the end of the epoch are empty, but every rank has k of
// them, so that all issue the same collectives: an empty one is a sequence of two tokens without a target, of weight 0.
class Sampler {
 public:
  enum class Order : std::uint8_t { Shuffled, Sequential };
  // Samples longer than `max_tokens` are cut (cut_tokens() counts). Requires: batch_size > 0, max_tokens > 1.
  Sampler(const TokenFile& file, std::int64_t batch_size, std::int64_t max_tokens, std::uint64_t seed, Order order);

  // This rank's part of the next global batch, of the next epoch when one has ended. Moves on by the whole of it, so
  // that all ranks stand at the same place.
  GlobalBatch next(const Share& share);
  // The next batch of a single rank; the last of an epoch may be smaller, never empty.
  Batch next() { return std::move(next(Share{}).micro_batches.front()); }
  // Global batches in one epoch.
  std::uint64_t batches_per_epoch(const Share& share = {}) const;
  SamplerState state() const { return state_; }
  void restore(SamplerState state);
  std::uint64_t cut_tokens() const;

 private:
  void shuffle();
  // Samples [first, last) of the epoch's order, cut.
  std::vector<Sample> samples(std::uint64_t first, std::uint64_t last) const;

  const TokenFile* file_;
  std::int64_t batch_size_;
  std::int64_t max_tokens_;
  std::uint64_t seed_;
  Order order_;
  SamplerState state_;
  std::vector<std::uint32_t> order_of_epoch_;
};

}  // namespace strata::data
