#include "bench_nvme.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <map>
#include <random>
#include <span>
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
#include "fio.h"
#include "nvme/device_profile.h"
#include "store_runner.h"

namespace strata::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kSpareDiskBytes = std::uint64_t{1} << 30;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

enum class Side { Store, Checksums, Fio };

const char* name_of(Side side) {
  switch (side) {
    case Side::Store:
      return "store";
    case Side::Checksums:
      return "checksums";
    case Side::Fio:
      return "fio";
  }
  return "";
}

void check(const NvmeBenchOptions& options) {
  if (options.dirs.empty()) throw ConfigError("bench nvme: name a directory on the drive");
  if (options.rounds == 0) throw ConfigError("bench nvme: at least one round is needed");
  if (options.bytes < kTransferBytes) {
    throw ConfigError("bench nvme: at least " + format_bytes(kTransferBytes) + " must be moved, got " +
                      format_bytes(options.bytes));
  }
  for (const fs::path& dir : options.dirs) {
    std::error_code error;
    const fs::space_info space = fs::space(dir, error);
    if (error) throw IoError({error.value(), "statvfs", dir.string(), 0, 0, "name an existing directory"});
    // As if all of it went to each: two directories may lie on one file system.
    const std::uint64_t needed = 5 * options.bytes + kSpareDiskBytes;
    if (space.available < needed) {
      throw ConfigError("bench nvme: " + dir.string() + " has " + format_bytes(space.available) + " free and needs " +
                        format_bytes(needed) + "; lower the bytes or name another directory");
    }
  }
}

// The sides of the comparison, and what they found.
class NvmeBench {
 public:
  explicit NvmeBench(const NvmeBenchOptions& options)
      : options_(options),
        folders_(options.dirs.begin(), options.dirs.end()),
        store_options_(store_options(options, folders_)),
        host_("host", whole_pages(StoreRunner::slots_for(store_options_) * kTransferBytes)),
        slots_(allocate_host(host_, host_.limit(), MemoryTag::Staging), kTransferBytes),
        plain_(store_options_, slots_),
        checksums_(with_checksums(store_options_), slots_) {
    // Bytes that no drive can compress, as fio's are.
    std::mt19937_64 random(1);
    const std::span<std::byte> region = slots_.region();
    std::generate_n(reinterpret_cast<std::uint64_t*>(region.data()), region.size() / sizeof(std::uint64_t), random);
    if (options.with_fio && fio_available()) order_.push_back(Side::Fio);
    fio_huge_pages_ = with_fio() && fio_gets_huge_pages(fio_job(Pattern::Read));
  }

  // Lays out the files. Keeps no figures.
  void warm_up() {
    for (const Pattern pattern : kPatterns) {
      for (const Side side : order_) measure(side, pattern);
    }
  }

  // All orders in turn, so that nobody always follows the same other side.
  void round() {
    for (const Pattern pattern : kPatterns) {
      for (const Side side : order_) samples_[pattern][side].push_back(measure(side, pattern));
    }
    std::next_permutation(order_.begin(), order_.end());
  }

  json result() {
    json out = {
        {"rounds", options_.rounds},
        {"bytes", options_.bytes},
        {"block_bytes", store_options_.block_bytes},
        {"depth", store_options_.queue_depth},
        {"direct_io", plain_.direct()},
        {"fio", with_fio()},
        {"fio_huge_pages", fio_huge_pages_},
        {"huge_pages_wanted", slots_.region().size() / kHugePageBytes + fio_huge_pages(fio_job(Pattern::Read))}};
    for (const fs::path& dir : options_.dirs) out["dirs"].push_back(dir.string());
    for (const Pattern pattern : kPatterns) add_pattern(out, pattern);
    for (const DriveStats& drive : plain_.stats().drives) {
      out["drives"].push_back({{"path", drive.path},
                               {"bytes_read", drive.bytes_read},
                               {"bytes_written", drive.bytes_written},
                               {"read_rate", drive.read_rate},
                               {"write_rate", drive.write_rate},
                               {"best_write_rate", drive.best_write_rate}});
    }
    return out;
  }

 private:
  bool with_fio() const { return std::find(order_.begin(), order_.end(), Side::Fio) != order_.end(); }

  static StoreRunnerOptions store_options(const NvmeBenchOptions& options, const std::deque<ScratchFolder>& folders) {
    const nvme::DeviceProfile known = nvme::load_profile(options.dirs.front()).value_or(nvme::DeviceProfile{});
    StoreRunnerOptions store{.bytes = options.bytes,
                             .block_bytes = options.block_bytes.value_or(known.block_bytes),
                             .queue_depth = options.queue_depth.value_or(known.queue_depth)};
    for (const ScratchFolder& folder : folders) store.folders.push_back(folder.path());
    return store;
  }

  static StoreRunnerOptions with_checksums(StoreRunnerOptions store) {
    store.checksums = true;
    return store;
  }

  FioJob fio_job(Pattern pattern) const {
    FioJob job{.pattern = pattern == Pattern::Mixed ? "rw" : name_of(pattern),
               .bytes = options_.bytes,
               .block_bytes = store_options_.block_bytes,
               .queue_depth = store_options_.queue_depth};
    for (const ScratchFolder& folder : folders_) job.files.push_back(folder.path() / "fio");
    return job;
  }

  // GiB/s. Every side gets the same rest.
  double measure(Side side, Pattern pattern) {
    if (side == Side::Fio) return fio_.run(fio_job(pattern)) / kGiB;
    std::this_thread::sleep_for(options_.idle);
    return (side == Side::Store ? plain_ : checksums_).run(pattern) / kGiB;
  }

  std::vector<double> ratios(Pattern pattern, Side above, Side below) {
    std::vector<double> values;
    for (unsigned round = 0; round < options_.rounds; ++round) {
      values.push_back(samples_[pattern][above][round] / samples_[pattern][below][round]);
    }
    return values;
  }

  void add_pattern(json& out, Pattern pattern) {
    const std::string name = name_of(pattern);
    for (const Side side : order_) out["samples"][name][name_of(side)] = samples_[pattern][side];
    out[name + "_gib_s"] = median(samples_[pattern][Side::Store]);
    out[name + "_checksum_ratio"] = median(ratios(pattern, Side::Checksums, Side::Store));
    for (const char* key : {"_ratio_median", "_ratio_interval"}) out[name + key] = nullptr;
    out["fio_" + name + "_gib_s"] = nullptr;
    if (!with_fio()) return;
    const std::vector<double> to_fio = ratios(pattern, Side::Store, Side::Fio);
    out["fio_" + name + "_gib_s"] = median(samples_[pattern][Side::Fio]);
    out[name + "_ratio_median"] = median(to_fio);
    out[name + "_ratio_interval"] = median_interval(to_fio);
  }

  const NvmeBenchOptions options_;
  const std::deque<ScratchFolder> folders_;  // a deque, because they cannot move
  const StoreRunnerOptions store_options_;
  Budget host_;
  SlotPool slots_;
  StoreRunner plain_;
  StoreRunner checksums_;
  std::vector<Side> order_{Side::Store, Side::Checksums};  // of the next round
  bool fio_huge_pages_ = false;
  RestedFio fio_{options_.idle};
  std::map<Pattern, std::map<Side, std::vector<double>>> samples_;  // GiB/s, one per round
};

std::string cell(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string row(const json& result, const std::string& name) {
  std::string text = name + std::string(8 - name.size(), ' ');
  text += cell("%10.3f", result.at(name + "_gib_s").get<double>());
  if (result.at("fio").get<bool>()) {
    const json& interval = result.at(name + "_ratio_interval");
    text += cell("%10.3f", result.at("fio_" + name + "_gib_s").get<double>());
    text += cell("%12.3f", result.at(name + "_ratio_median").get<double>());
    text += cell("  [%.3f", interval.at(0).get<double>()) + cell(", %.3f]", interval.at(1).get<double>());
  }
  return text + cell("%14.3f\n", result.at(name + "_checksum_ratio").get<double>());
}

}  // namespace

json run_nvme_bench(const NvmeBenchOptions& options) {
  check(options);
  NvmeBench bench(options);
  bench.warm_up();
  for (unsigned round = 0; round < options.rounds; ++round) bench.round();
  return bench.result();
}

std::string format_nvme_bench(const json& result) {
  const bool with_fio = result.at("fio").get<bool>();
  std::string text;
  for (const json& dir : result.at("dirs")) text += (text.empty() ? "" : ", ") + dir.get<std::string>();
  text += ": " + format_bytes(result.at("bytes").get<std::uint64_t>()) + ", blocks of " +
          format_bytes(result.at("block_bytes").get<std::uint64_t>()) + ", depth " +
          std::to_string(result.at("depth").get<unsigned>()) + ", " +
          std::to_string(result.at("rounds").get<unsigned>()) + " rounds, " +
          (result.at("direct_io").get<bool>() ? "direct" : "buffered") + " I/O\n";
  text += with_fio ? "            store       fio   store/fio  [95 % interval]  with checksums\n"
                   : "            store  with checksums\n";
  for (const Pattern pattern : {Pattern::Read, Pattern::Write, Pattern::Mixed}) text += row(result, name_of(pattern));
  text += "store and fio in GiB/s, medians; the rest are medians of paired ratios\n";
  if (!with_fio) {
    text += "fio did not run: no comparison\n";
  } else if (!result.at("fio_huge_pages").get<bool>()) {
    text +=
        "fio's buffers lie on small pages and the store's on huge ones, which flatters the store. For a fair "
        "comparison "
        "reserve huge pages first: sysctl vm.nr_hugepages=" +
        std::to_string(result.at("huge_pages_wanted").get<std::uint64_t>()) + "\n";
  }
  return text;
}

}  // namespace strata::bench
