#include "data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::data {
namespace {

constexpr std::int64_t kIgnored = -100;

// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; the constants are
// those of Vigna's public-domain splitmix64.c. Standard distributions differ between libraries, so the shuffle uses
// none.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound). The first 2^64 mod bound values are rejected, which leaves whole multiples of bound.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t rejected = (0 - bound) % bound;
    std::uint64_t value = next();
    while (value < rejected) value = next();
    return value % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

Sampler::Sampler(const TokenFile& file, std::int64_t batch_size, std::int64_t max_tokens, std::uint64_t seed,
                 Order order)
    : file_(&file), batch_size_(batch_size), max_tokens_(max_tokens), seed_(seed), order_(order) {
  STRATA_EXPECTS(batch_size > 0, "batch size " + std::to_string(batch_size));
  STRATA_EXPECTS(max_tokens > 1, "samples of " + std::to_string(max_tokens) + " tokens have no target");
  if (file.samples() > std::numeric_limits<std::uint32_t>::max()) {
    throw DataError(std::to_string(file.samples()) + " samples in one token file, at most 4294967295 are supported");
  }
  order_of_epoch_.resize(file.samples());
  shuffle();
}

// Fisher-Yates, as Algorithm P in Knuth, The Art of Computer Programming, vol. 2, section 3.4.2.
void Sampler::shuffle() {
  std::iota(order_of_epoch_.begin(), order_of_epoch_.end(), 0u);
  if (order_ == Order::Sequential) return;
  // The seed is mixed before the epoch is added, so that (seed 1, epoch 0) and (seed 0, epoch 1) are unrelated.
  SplitMix64 random(SplitMix64(seed_).next() + state_.epoch);
  for (std::size_t i = order_of_epoch_.size(); i > 1; --i) {
    std::swap(order_of_epoch_[i - 1], order_of_epoch_[random.below(i)]);
  }
}

Batch Sampler::next() {
  const std::uint64_t samples = order_of_epoch_.size();
  if (state_.position == samples) {
    state_ = {.epoch = state_.epoch + 1, .position = 0};
    shuffle();
  }
  const std::uint64_t first = state_.position;
  const std::uint64_t last = std::min(samples, first + static_cast<std::uint64_t>(batch_size_));
  std::vector<Sample> chosen;
  std::size_t longest = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    Sample sample = file_->sample(order_of_epoch_[i]);
    const std::size_t length = std::min(sample.tokens.size(), static_cast<std::size_t>(max_tokens_));
    chosen.push_back({sample.tokens.first(length), sample.trained.first(length)});
    longest = std::max(longest, length);
  }
  state_.position = last;

  Batch batch;
  batch.sequences = static_cast<std::int64_t>(chosen.size());
  batch.tokens_each = static_cast<std::int64_t>(longest);
  batch.tokens.assign(chosen.size() * longest, 0);
  batch.labels.assign(chosen.size() * longest, kIgnored);
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    const Sample& sample = chosen[row];
    for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
      batch.tokens[row * longest + t] = sample.tokens[t];
      if (t == 0 || sample.trained[t] == 0) continue;
      batch.labels[row * longest + t - 1] = sample.tokens[t];
      ++batch.target_tokens;
    }
  }
  return batch;
}

std::uint64_t Sampler::batches_per_epoch() const {
  return ceil_div(order_of_epoch_.size(), static_cast<std::uint64_t>(batch_size_));
}

void Sampler::restore(SamplerState state) {
  if (state.position > order_of_epoch_.size()) {
    throw DataError("the checkpoint stands at sample " + std::to_string(state.position) +
                    " of an epoch, the token file has " + std::to_string(order_of_epoch_.size()) +
                    ": resume with the data the run began with");
  }
  state_ = state;
  shuffle();
}

std::uint64_t Sampler::cut_tokens() const {
  std::uint64_t cut = 0;
  for (std::size_t i = 0; i < file_->samples(); ++i) {
    const std::size_t length = file_->sample(i).tokens.size();
    cut += length - std::min(length, static_cast<std::size_t>(max_tokens_));
  }
  return cut;
}

}  // namespace strata::data
