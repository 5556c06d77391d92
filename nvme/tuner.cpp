#include "nvme/tuner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "core/statistics.h"

namespace strata::nvme {
namespace {

constexpr std::array<std::size_t, 4> kBlockBytes{128 << 10, 512 << 10, 1 << 20, 4 << 20};
constexpr std::array<unsigned, 5> kDepths{4, 8, 16, 32, 64};
constexpr std::size_t kMostInFlight = std::size_t{64} << 20;
constexpr std::array kRingModes{RingMode::Plain, RingMode::Deferred, RingMode::Polled};
constexpr std::array<std::uint64_t, 4> kBurstBytes{0, 4 << 20, 16 << 20, 64 << 20};
constexpr double kAsGood = 0.02;   // less is no difference
constexpr double kClearly = 0.05;  // more is one
constexpr double kCpuClearly = 0.15;
constexpr double kOverlap = 0.15;  // faster than one direction after the other: full duplex
constexpr double kTrialSeconds = 0.1;
constexpr unsigned kLeastRounds = 3;

// One byte each way.
double both_ways(double read_rate, double write_rate) {
  return read_rate > 0 && write_rate > 0 ? 2 / (1 / read_rate + 1 / write_rate) : 0;
}

using Table = std::vector<std::vector<double>>;  // [round][candidate]

struct Judged {
  double value = 0;
  double spread = 0;  // median absolute deviation, as a share
};

// `rounds[r][c]` is what candidate c gave in round r. Drift moves a round as a whole, so shares of its mean are
// compared and scaled back at the end. (Of its median, one of three candidates would always have a share of 1 and no
// spread.)
std::vector<Judged> judge(const Table& rounds) {
  std::vector<double> centres;
  for (const std::vector<double>& round : rounds) {
    centres.push_back(std::accumulate(round.begin(), round.end(), 0.0) / static_cast<double>(round.size()));
  }
  const double scale = median(centres);
  std::vector<Judged> judged;
  for (std::size_t c = 0; c < rounds.front().size(); ++c) {
    std::vector<double> shares;
    for (std::size_t r = 0; r < rounds.size(); ++r) shares.push_back(centres[r] > 0 ? rounds[r][c] / centres[r] : 0);
    const double centre = median(shares);
    judged.push_back({centre * scale, centre > 0 ? mad(shares) / centre : 0});
  }
  return judged;
}

// Whether a is more than b by `share`, and at all in nine of ten rounds: pairs of one round, so that neither drift nor
// the shape of the noise matters.
bool clearly_more(const Table& rounds, std::size_t a, std::size_t b, double share) {
  std::vector<double> ratios;
  for (const std::vector<double>& round : rounds) ratios.push_back(round[b] > 0 ? round[a] / round[b] : 0);
  const auto losses = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio <= 1; });
  return median(ratios) > 1 + share && losses * 10 <= static_cast<std::ptrdiff_t>(ratios.size());
}

// What one candidate gave in one round.
struct Outcome {
  double read = 0, write = 0, cpu_per_byte = 0;
};

class Tuner {
 public:
  Tuner(Probe& probe, const TuneOptions& options) : probe_(probe) {
    for (const RingMode mode : kRingModes) {
      if (probe.knows(mode)) modes_.push_back(mode);
    }
    for (const std::size_t block : kBlockBytes) {
      for (const unsigned depth : kDepths) {
        if (block * depth <= kMostInFlight) report_.sizes.push_back({.block_bytes = block, .depth = depth});
      }
    }
    const auto trials = static_cast<double>(2 * report_.sizes.size() + 4 * modes_.size() + 2 + kBurstBytes.size());
    trial_seconds_ = std::min(kTrialSeconds, options.seconds / (trials * kLeastRounds));
    report_.rounds = std::max(kLeastRounds, static_cast<unsigned>(options.seconds / (trials * trial_seconds_)));
  }

  TuneReport run() {
    sweep_sizes();
    sweep_rings();
    sweep_mixes();
    return std::move(report_);
  }

 private:
  // Calls measure(round, candidate). The order is another in each round, so that nobody always follows the same one or
  // always comes last while a drive drifts.
  template <typename Measure>
  void rounds_of(std::size_t candidates, Measure measure) {
    std::vector<std::size_t> order(candidates);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (unsigned round = 0; round < report_.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t candidate : order) measure(round, candidate);
    }
  }

  Trial trial(Pattern pattern) const {
    return {.pattern = pattern,
            .block_bytes = report_.profile.block_bytes,
            .depth = report_.profile.queue_depth,
            .ring = report_.profile.ring,
            .burst_bytes = 0,
            .seconds = trial_seconds_};
  }

  Outcome both_directions(Trial one) {
    one.pattern = Pattern::Read;
    const Sample read = probe_.measure(one);
    one.pattern = Pattern::Write;
    const Sample write = probe_.measure(one);
    return {read.rate, write.rate, (read.cpu_per_byte + write.cpu_per_byte) / 2};
  }

  Table table(std::size_t candidates) const { return Table(report_.rounds, std::vector<double>(candidates)); }
  // Two candidates within this are as good as each other: the standard error of a median is about 1.9 MAD / sqrt(n).
  double alike(const std::vector<Judged>& judged) const {
    std::vector<double> spreads;
    for (const Judged& one : judged) spreads.push_back(one.spread);
    return std::max(kAsGood, 1.9 * median(spreads) / std::sqrt(static_cast<double>(report_.rounds)));
  }

  void sweep_sizes() {
    std::vector<SizeRow>& rows = report_.sizes;
    Table reads = table(rows.size()), writes = reads, both = reads;
    // With the default ring where it can be had: it is what the sizes are most likely used with.
    report_.profile.ring = modes_.size() > 1 && modes_[1] == RingMode::Deferred ? RingMode::Deferred : RingMode::Plain;
    rounds_of(rows.size(), [&](std::size_t round, std::size_t i) {
      Trial one = trial(Pattern::Read);
      one.block_bytes = rows[i].block_bytes;
      one.depth = rows[i].depth;
      const Outcome outcome = both_directions(one);
      reads[round][i] = outcome.read;
      writes[round][i] = outcome.write;
      both[round][i] = both_ways(outcome.read, outcome.write);
    });
    const std::vector<Judged> read = judge(reads), write = judge(writes), rate = judge(both);
    double best = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].read_rate = read[i].value;
      rows[i].write_rate = write[i].value;
      rows[i].rate = rate[i].value;
      rows[i].spread = rate[i].spread;
      best = std::max(best, rate[i].value);
    }
    const double enough = best * (1 - alike(rate));
    const SizeRow* chosen = nullptr;
    for (const SizeRow& row : rows) {
      if (row.rate < enough) continue;
      // Equal bytes in flight: the larger blocks, which are fewer requests.
      if (chosen == nullptr || row.block_bytes * row.depth <= chosen->block_bytes * chosen->depth) chosen = &row;
    }
    report_.profile.block_bytes = chosen->block_bytes;
    report_.profile.queue_depth = chosen->depth;
  }

  void sweep_rings() {
    if (modes_.empty()) return;
    Table rates = table(modes_.size()), busy_rates = rates, cpus = rates;
    rounds_of(modes_.size(), [&](std::size_t round, std::size_t i) {
      Trial one = trial(Pattern::Read);
      one.ring = modes_[i];
      const Outcome outcome = both_directions(one);
      rates[round][i] = both_ways(outcome.read, outcome.write);
      cpus[round][i] = outcome.cpu_per_byte;
      one.busy = true;
      const Outcome busy = both_directions(one);
      busy_rates[round][i] = both_ways(busy.read, busy.write);
    });
    const std::vector<Judged> rate = judge(rates), busy = judge(busy_rates), cpu = judge(cpus);
    for (std::size_t i = 0; i < modes_.size(); ++i) {
      report_.rings.push_back({modes_[i], rate[i].value, busy[i].value, cpu[i].value, rate[i].spread});
    }
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < modes_.size(); ++i) {
      const bool faster = clearly_more(rates, i, chosen, kClearly);
      const bool as_fast = rate[i].value > rate[chosen].value * (1 - alike(rate));
      const bool cheaper = clearly_more(cpus, chosen, i, kCpuClearly);
      const bool holds_up = !clearly_more(busy_rates, chosen, i, kClearly);
      if ((faster || (as_fast && cheaper)) && holds_up) chosen = i;
    }
    report_.profile.ring = modes_[chosen];
  }

  void sweep_mixes() {
    constexpr std::size_t kAlone = 2;  // reads alone and writes alone, in the same rounds
    constexpr std::size_t kCandidates = kAlone + kBurstBytes.size();
    Table rates = table(kCandidates);
    rounds_of(kCandidates, [&](std::size_t round, std::size_t i) {
      Trial one = trial(i == 0 ? Pattern::Read : i == 1 ? Pattern::Write : Pattern::Mixed);
      if (i >= kAlone) one.burst_bytes = kBurstBytes[i - kAlone];
      rates[round][i] = probe_.measure(one).rate;
    });
    const std::vector<Judged> judged = judge(rates);
    std::size_t best = kAlone;
    for (std::size_t i = kAlone; i < kCandidates; ++i) {
      report_.mixes.push_back({kBurstBytes[i - kAlone], judged[i].value, judged[i].spread});
      if (judged[i].value > judged[best].value) best = i;
    }
    report_.read_rate = judged[0].value;
    report_.write_rate = judged[1].value;
    Table overlap = rates;  // the best mix beside one direction after the other
    for (std::vector<double>& round : overlap) round = {round[best], both_ways(round[0], round[1])};
    report_.half_duplex = !clearly_more(overlap, 0, 1, kOverlap);
    const MixRow* chosen = &report_.mixes.front();  // no bursts
    if (clearly_more(rates, best, kAlone, kClearly)) {
      const auto as_good = [&](const MixRow& row) { return row.rate >= judged[best].value * (1 - kAsGood); };
      chosen = &*std::find_if(report_.mixes.begin(), report_.mixes.end(), as_good);
    }
    report_.profile.burst_bytes = chosen->burst_bytes;
    report_.profile.mixed_rate = chosen->rate;
    report_.profile.read_rate = report_.read_rate;
    report_.profile.write_rate = report_.write_rate;
  }

  Probe& probe_;
  std::mt19937 random_{1};
  std::vector<RingMode> modes_;
  double trial_seconds_ = kTrialSeconds;
  TuneReport report_;
};

}  // namespace

TuneReport tune(Probe& probe, const TuneOptions& options) {
  return Tuner(probe, options).run();
}

}  // namespace strata::nvme
