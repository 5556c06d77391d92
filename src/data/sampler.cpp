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
constexpr std::int64_t kEmptyTokens = 2;  // the fewest of which one can predict another

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

std::size_t longest(const std::vector<Sample>& samples) {
  std::size_t length = 0;
  for (const Sample& sample : samples) length = std::max(length, sample.tokens.size());
  return length;
}

Batch batch_of(const std::vector<Sample>& samples, std::size_t tokens_each) {
  if (samples.empty()) return {1, kEmptyTokens, {0, 0}, {kIgnored, kIgnored}, 0};
  Batch batch;
  batch.sequences = static_cast<std::int64_t>(samples.size());
  batch.tokens_each = static_cast<std::int64_t>(tokens_each);
  batch.tokens.assign(samples.size() * tokens_each, 0);
  batch.labels.assign(samples.size() * tokens_each, kIgnored);
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const Sample& sample = samples[row];
    for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
      batch.tokens[row * tokens_each + t] = sample.tokens[t];
      if (t == 0 || sample.trained[t] == 0) continue;
      batch.labels[row * tokens_each + t - 1] = sample.tokens[t];
      ++batch.target_tokens;
    }
  }
  return batch;
}

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

std::vector<Sample> Sampler::samples(std::uint64_t first, std::uint64_t last) const {
  std::vector<Sample> chosen;
  for (std::uint64_t i = first; i < last; ++i) {
    const Sample sample = file_->sample(order_of_epoch_[i]);
    const std::size_t length = std::min(sample.tokens.size(), static_cast<std::size_t>(max_tokens_));
    chosen.push_back({sample.tokens.first(length), sample.trained.first(length)});
  }
  return chosen;
}

GlobalBatch Sampler::next(const Share& share) {
  STRATA_EXPECTS(share.rank < share.ranks && share.micro_batches > 0, "a rank that takes part");
  const std::uint64_t end = order_of_epoch_.size();
  if (state_.position == end) {
    state_ = {.epoch = state_.epoch + 1, .position = 0};
    shuffle();
  }
  GlobalBatch global;
  for (std::size_t g = 0; g < share.micro_batches * share.ranks; ++g) {
    const std::uint64_t last = std::min(end, state_.position + static_cast<std::uint64_t>(batch_size_));
    const std::vector<Sample> chosen = samples(state_.position, last);
    state_.position = last;
    const std::size_t tokens_each = longest(chosen);
    global.tokens += chosen.empty() ? std::size_t{kEmptyTokens} : chosen.size() * tokens_each;
    if (g % share.ranks == share.rank) global.micro_batches.push_back(batch_of(chosen, tokens_each));
  }
  return global;
}

std::uint64_t Sampler::batches_per_epoch(const Share& share) const {
  return ceil_div(order_of_epoch_.size(), static_cast<std::uint64_t>(batch_size_) * share.ranks * share.micro_batches);
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
