#include "shared_drive.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/page_mapping.h"
#include "core/scratch_folder.h"
#include "core/slot_pool.h"
#include "core/statistics.h"
#include "nvme/device_profile.h"
#include "rank_process.h"
#include "store_runner.h"

namespace strata::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// Until every process has begun: its queue is full when the measurement begins.
constexpr auto kRunUp = std::chrono::milliseconds(100);

enum class Side { Shared, Apart, One };

void check(const SharedDriveBenchOptions& options) {
  if (options.processes < 2 || options.processes > 64) throw ConfigError("bench nvme: 2 to 64 processes");
  if (options.rounds == 0 || !(options.seconds > 0)) throw ConfigError("bench nvme: a round, and some seconds");
  if (options.bytes < kTransferBytes) {
    throw ConfigError("bench nvme: at least " + format_bytes(kTransferBytes) + ", got " + format_bytes(options.bytes));
  }
  std::error_code error;
  const fs::space_info space = fs::space(options.dir, error);
  if (error) throw IoError({error.value(), "statvfs", options.dir.string(), 0, 0, "name an existing directory"});
  const std::uint64_t needed = 5 * options.processes * options.bytes;
  if (space.available < needed) {
    throw ConfigError("bench nvme: " + options.dir.string() + " has " + format_bytes(space.available) +
                      " free and needs " + format_bytes(needed) + "; lower the bytes or name another directory");
  }
}

// What one process has: a store that shares and one that does not, and the memory of both.
class Rank {
 public:
  explicit Rank(const StoreRunnerOptions& options)
      : host_("host", whole_pages(StoreRunner::slots_for(options) * kTransferBytes) + whole_pages(options.block_bytes)),
        slots_(allocate_host(host_, whole_pages(StoreRunner::slots_for(options) * kTransferBytes), MemoryTag::Staging),
               kTransferBytes),
        block_(allocate_host(host_, options.block_bytes, MemoryTag::Staging)),
        shared_(options, slots_),
        apart_(alone(options), slots_) {
    for (StoreRunner* runner : {&shared_, &apart_}) {
      runner->run(Pattern::Write);
      runner->run(Pattern::Mixed);
    }
  }

  RankResult run(const RankTask& task) {
    StoreRunner& runner = task.shared ? shared_ : apart_;
    RankResult result;
    std::vector<double> latencies;
    std::jthread reader;
    if (task.demand) {
      reader = std::jthread([&] {
        std::this_thread::sleep_until(task.begin);
        while (Clock::now() < task.end) latencies.push_back(runner.read_on_demand(block_.span()));
      });
    }
    result.bytes = runner.run_between(static_cast<Pattern>(task.pattern), task.begin, task.end);
    if (task.demand) {
      reader.join();
      result.demand_seconds = median(latencies);
    }
    return result;
  }

 private:
  static StoreRunnerOptions alone(StoreRunnerOptions options) {
    options.ranks = 1;
    return options;
  }

  Budget host_;
  SlotPool slots_;
  Buffer block_;
  StoreRunner shared_;
  StoreRunner apart_;
};

struct Sample {
  double total = 0;
  double slowest = 0;
  double demand = 0;  // of all processes, the mean of their medians
};

class SharedDriveBench {
 public:
  explicit SharedDriveBench(const SharedDriveBenchOptions& options) : options_(options), folder_(options.dir) {
    const nvme::DeviceProfile known = nvme::load_profile(options.dir).value_or(nvme::DeviceProfile{});
    store_ = {.folders = {folder_.path()},
              .bytes = options.bytes / kTransferBytes * kTransferBytes,
              .block_bytes = options.block_bytes.value_or(known.block_bytes),
              .queue_depth = options.queue_depth.value_or(known.queue_depth),
              .job = folder_.path().string(),
              .ranks = options.processes};
    for (std::size_t i = 0; i < options.processes; ++i) {
      processes_.push_back(std::make_unique<RankProcess>([this]() -> RankProcess::Work {
        return [rank = std::make_shared<Rank>(store_)](const RankTask& task) { return rank->run(task); };
      }));
    }
    for (const auto& process : processes_) (void)process->result();  // it is ready
  }

  void round() {
    for (const Pattern pattern : kPatterns) {
      for (const Side side : order_) rates_[pattern][side].push_back(measure(side, pattern, false));
    }
    for (const Side side : order_) demand_[side].push_back(measure(side, Pattern::Mixed, true));
    std::next_permutation(order_.begin(), order_.end());
  }

  json result() {
    json out = {{"dir", options_.dir.string()},      {"processes", options_.processes}, {"rounds", options_.rounds},
                {"block_bytes", store_.block_bytes}, {"depth", store_.queue_depth},     {"seconds", options_.seconds}};
    for (const Pattern pattern : kPatterns) {
      std::map<Side, std::vector<Sample>>& of = rates_[pattern];
      json& row = out[name_of(pattern)];
      for (const auto& [side, name] : kNames) row[name + "_gib_s"] = median(all(of[side], &Sample::total));
      row["apart_slowest_gib_s"] = median(all(of[Side::Apart], &Sample::slowest));
      row["shared_slowest_gib_s"] = median(all(of[Side::Shared], &Sample::slowest));
      add_ratio(row, "total", of, &Sample::total);
      add_ratio(row, "slowest", of, &Sample::slowest);
    }
    for (const auto& [side, name] : kNames)
      out["demand"][name + "_ms"] = 1e3 * median(all(demand_[side], &Sample::demand));
    add_ratio(out["demand"], "latency", demand_, &Sample::demand);
    out["turns_ratio"] = median(turns());
    return out;
  }

 private:
  inline static const std::map<Side, std::string> kNames{
      {Side::One, "one"}, {Side::Apart, "apart"}, {Side::Shared, "shared"}};

  Sample measure(Side side, Pattern pattern, bool demand) {
    RankTask task{.pattern = static_cast<int>(pattern), .shared = side == Side::Shared, .demand = demand};
    task.begin = Clock::now() + kRunUp;
    task.end =
        task.begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds));
    const std::size_t running = side == Side::One ? 1 : processes_.size();
    for (std::size_t i = 0; i < running; ++i) processes_[i]->start(task);
    Sample sample{.slowest = 1e30};
    for (std::size_t i = 0; i < running; ++i) {
      const RankResult result = processes_[i]->result();
      const double rate = static_cast<double>(result.bytes) / options_.seconds / kGiB;
      sample.total += rate;
      sample.slowest = std::min(sample.slowest, rate);
      sample.demand += result.demand_seconds / static_cast<double>(running);
    }
    return sample;
  }

  static std::vector<double> all(const std::vector<Sample>& samples, double Sample::*value) {
    std::vector<double> values;
    for (const Sample& sample : samples) values.push_back(sample.*value);
    return values;
  }

  static void add_ratio(json& out, const std::string& name, std::map<Side, std::vector<Sample>>& of,
                        double Sample::*value) {
    std::vector<double> ratios = all(of[Side::Shared], value);
    const std::vector<double> apart = all(of[Side::Apart], value);
    for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= apart[i];
    out[name + "_ratio"] = median(ratios);
    out[name + "_interval"] = median_interval(ratios);
  }

  // What could be gained if all ranks read, and then all wrote.
  std::vector<double> turns() {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < options_.rounds; ++i) {
      const double read = rates_[Pattern::Read][Side::Shared][i].total;
      const double write = rates_[Pattern::Write][Side::Shared][i].total;
      ratios.push_back(rates_[Pattern::Mixed][Side::Shared][i].total / (2 / (1 / read + 1 / write)));
    }
    return ratios;
  }

  const SharedDriveBenchOptions options_;
  const ScratchFolder folder_;
  StoreRunnerOptions store_;
  std::vector<std::unique_ptr<RankProcess>> processes_;
  std::array<Side, 3> order_{Side::Shared, Side::Apart, Side::One};  // of the next round
  std::map<Pattern, std::map<Side, std::vector<Sample>>> rates_;     // GiB/s, one per round
  std::map<Side, std::vector<Sample>> demand_;
};

std::string cell(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string interval(const json& of, const char* format) {
  return cell(format, of.at(0).get<double>()) + cell(", %.3f]", of.at(1).get<double>());
}

}  // namespace

json run_shared_drive_bench(const SharedDriveBenchOptions& options) {
  check(options);
  SharedDriveBench bench(options);
  for (unsigned round = 0; round < options.rounds; ++round) bench.round();
  return bench.result();
}

std::string format_shared_drive_bench(const json& result) {
  std::string text = result.at("dir").get<std::string>() + ": " + std::to_string(result.at("processes").get<int>()) +
                     " processes, blocks of " + format_bytes(result.at("block_bytes").get<std::uint64_t>()) +
                     ", depth " + std::to_string(result.at("depth").get<unsigned>()) + ", " +
                     std::to_string(result.at("rounds").get<unsigned>()) + " rounds\n" +
                     "             one     apart    shared   shared/apart  [95 % interval]   slowest: apart    shared"
                     "   shared/apart  [95 % interval]\n";
  for (const Pattern pattern : kPatterns) {
    const std::string name = name_of(pattern);
    const json& row = result.at(name);
    text += name + std::string(8 - name.size(), ' ');
    for (const char* key : {"one_gib_s", "apart_gib_s", "shared_gib_s"}) text += cell("%8.3f  ", row.at(key));
    text += cell("%13.3f", row.at("total_ratio")) + interval(row.at("total_interval"), "  [%.3f");
    text += cell("%18.3f", row.at("apart_slowest_gib_s")) + cell("%10.3f", row.at("shared_slowest_gib_s"));
    text += cell("%15.3f", row.at("slowest_ratio")) + interval(row.at("slowest_interval"), "  [%.3f") + "\n";
  }
  const json& demand = result.at("demand");
  text += "demand  ";
  for (const char* key : {"one_ms", "apart_ms", "shared_ms"}) text += cell("%8.3f  ", demand.at(key));
  text += cell("%13.3f", demand.at("latency_ratio")) + interval(demand.at("latency_interval"), "  [%.3f") + "\n";
  text += "rates of all processes, and of the slowest, in GiB/s; demand: ms for one block beside a mix; medians\n";
  text += "the shared mix reaches" + cell(" %.3f", result.at("turns_ratio")) +
          " of what all reading and then all writing would\n";
  return text;
}

}  // namespace strata::bench
