#include "nvme/tuner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// One byte each way.
double both_ways(double read_rate, double write_rate) {
  return read_rate > 0 && write_rate > 0 ? 2 / (1 / read_rate + 1 / write_rate) : 0;
}

struct Judged {
  double value = 0;
  double spread = 0;  // median absolute deviation, as a share
};

// `rounds[r][c]` is what candidate c gave in round r. Drift moves a round as a whole, so shares of its median are
// compared and scaled back at the end.
std::vector<Judged> judge(const std::vector<std::vector<double>>& rounds) {
  std::vector<double> centres;
  for (const std::vector<double>& round : rounds) centres.push_back(median(round));
  const double scale = median(centres);
  std::vector<Judged> judged;
  for (std::size_t c = 0; c < rounds.front().size(); ++c) {
    std::vector<double> shares;
    for (std::size_t r = 0; r < rounds.size(); ++r) shares.push_back(centres[r] > 0 ? rounds[r][c] / centres[r] : 0);
    const double centre = median(shares);
    std::vector<double> distances;
    for (const double share : shares) distances.push_back(std::abs(share - centre));
    judged.push_back({centre * scale, centre > 0 ? median(distances) / centre : 0});
  }
  return judged;
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

  using Table = std::vector<std::vector<double>>;  // [round][candidate]
  Table table(std::size_t candidates) const { return Table(report_.rounds, std::vector<double>(candidates)); }
  // The standard error of a median is about 1.9 MAD / sqrt(n).
  double standard_error(double spread) const { return 1.9 * spread / std::sqrt(static_cast<double>(report_.rounds)); }
  // Two candidates within this are as good as each other ...
  double alike(const std::vector<Judged>& judged) const {
    std::vector<double> spreads;
    for (const Judged& one : judged) spreads.push_back(one.spread);
    return std::max(kAsGood, standard_error(median(spreads)));
  }
  // ... and beyond this, two deviations of a difference with the noisiest of them, they are not.
  double clear(const std::vector<Judged>& judged, double least) const {
    double spread = 0;
    for (const Judged& one : judged) spread = std::max(spread, one.spread);
    return std::max(least, 2 * std::sqrt(2.0) * standard_error(spread));
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
    const RingRow* chosen = &report_.rings.front();
    for (const RingRow& row : report_.rings) {
      const bool faster = row.rate > chosen->rate * (1 + clear(rate, kClearly));
      const bool as_fast = row.rate > chosen->rate * (1 - alike(rate));
      const bool cheaper = row.cpu_per_byte < chosen->cpu_per_byte * (1 - clear(cpu, kCpuClearly));
      const bool holds_up = row.busy_rate > chosen->busy_rate * (1 - clear(busy, kClearly));
      if ((faster || (as_fast && cheaper)) && holds_up) chosen = &row;
    }
    report_.profile.ring = chosen->ring;
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
    double best = 0;
    for (std::size_t i = 0; i < kBurstBytes.size(); ++i) {
      const Judged& one = judged[kAlone + i];
      report_.mixes.push_back({kBurstBytes[i], one.value, one.spread});
      best = std::max(best, one.value);
    }
    report_.read_rate = judged[0].value;
    report_.write_rate = judged[1].value;
    report_.half_duplex = best < both_ways(report_.read_rate, report_.write_rate) * (1 + clear(judged, kOverlap));
    const MixRow* chosen = &report_.mixes.front();  // no bursts
    if (best > chosen->rate * (1 + clear(judged, kClearly))) {
      const auto as_good = [&](const MixRow& row) { return row.rate >= best * (1 - kAsGood); };
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
