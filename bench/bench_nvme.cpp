#include "bench_nvme.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <system_error>
#include <vector>

#include "bench/statistics.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/slot_pool.h"
#include "fio.h"
#include "nvme/nvme_store.h"

namespace strata::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kSpareDiskBytes = std::uint64_t{1} << 30;
constexpr std::size_t kTransferBytes = std::size_t{8} << 20;  // about what the engine moves at once

enum class Pattern { Write, Read, Mixed };
constexpr std::array kPatterns{Pattern::Write, Pattern::Read, Pattern::Mixed};

const char* name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::Write:
      return "write";
    case Pattern::Read:
      return "read";
    case Pattern::Mixed:
      return "mixed";
  }
  return "";
}

json summary(const char* key, const std::vector<double>& values) {
  return {{key, values}, {"median", median(values)}, {"mad", mad(values)}};
}

// A folder of this run's own, removed with what is in it.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& parent) {
    std::string pattern = (parent / "strata-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw IoError({errno, "mkdtemp", parent.string(), 0, 0, "name a directory that this user may write in"});
    }
    path_ = pattern;
  }
  ~WorkFolder() {
    std::error_code ignored;  // nothing to be done about it at the end
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The store with two blobs, moved piece after piece through registered slots, as the engine does it.
class StoreBench {
 public:
  StoreBench(const NvmeBenchOptions& options, const fs::path& folder)
      : bytes_(options.bytes),
        slots_(slot_count(options)),
        disk_("nvme", 2 * align_up(options.bytes, kPageBytes)),
        host_("host", slots_ * kTransferBytes),
        pool_(allocate_host(host_, slots_ * kTransferBytes, MemoryTag::Staging), kTransferBytes),
        store_({.paths = {folder},
                .block_bytes = options.block_bytes,
                .queue_depth = options.queue_depth,
                .regions = {pool_.region()}},
               disk_),
        blobs_{store_.create("first", bytes_), store_.create("second", bytes_)} {
    // Bytes that no drive can compress, as fio's are.
    std::mt19937_64 random(1);
    std::generate(pool_.region().begin(), pool_.region().end(), [&random] { return static_cast<std::byte>(random()); });
  }

  bool direct() const { return store_.mode_of_path(0) == nvme::IoMode::Direct; }

  // Bytes per second.
  double run(Pattern pattern) {
    using Clock = std::chrono::steady_clock;
    std::vector<Event> busy(slots_);
    const Clock::time_point start = Clock::now();
    std::size_t piece = 0;
    for (std::uint64_t offset = 0; offset < bytes_; offset += kTransferBytes, ++piece) {
      const std::size_t slot = piece % slots_;
      busy[slot].wait();
      busy[slot] = move(pattern, piece, offset, pool_.slot(slot));
    }
    when_all(busy).wait();
    return static_cast<double>(bytes_) / std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  // Four times what the queue holds, so that it does not run dry when this thread is late; at least four pieces.
  static std::size_t slot_count(const NvmeBenchOptions& options) {
    const std::uint64_t in_flight = std::uint64_t{options.block_bytes} * options.queue_depth;
    return static_cast<std::size_t>(std::clamp<std::uint64_t>(4 * ceil_div(in_flight, kTransferBytes), 4, 64));
  }

  Event move(Pattern pattern, std::size_t piece, std::uint64_t offset, std::span<std::byte> slot) {
    const std::span<std::byte> part = slot.first(std::min<std::uint64_t>(kTransferBytes, bytes_ - offset));
    const bool reads = pattern == Pattern::Read || (pattern == Pattern::Mixed && piece % 2 == 0);
    if (reads) return store_.read(blobs_[0], offset, part, IoUrgency::Demand);
    return store_.write(blobs_[pattern == Pattern::Mixed ? 1 : 0], offset, part);
  }

  const std::uint64_t bytes_;
  const std::size_t slots_;
  Budget disk_;
  Budget host_;
  SlotPool pool_;
  nvme::NvmeStore store_;
  std::array<BlobId, 2> blobs_;
};

void check(const NvmeBenchOptions& options) {
  if (options.rounds == 0) throw ConfigError("bench nvme: at least one round is needed");
  if (options.bytes < kTransferBytes) {
    throw ConfigError("bench nvme: at least " + format_bytes(kTransferBytes) + " must be moved, got " +
                      format_bytes(options.bytes));
  }
  std::error_code error;
  const fs::space_info space = fs::space(options.dir, error);
  if (error) throw IoError({error.value(), "statvfs", options.dir.string(), 0, 0, "name an existing directory"});
  const std::uint64_t needed = 2 * options.bytes + kSpareDiskBytes;
  if (space.available < needed) {
    throw ConfigError("bench nvme: " + options.dir.string() + " has " + format_bytes(space.available) +
                      " free and needs " + format_bytes(needed) + "; lower the bytes or name another directory");
  }
}

struct Series {
  std::vector<double> strata;  // GB/s
  std::vector<double> fio;
  std::vector<double> ratio;
};

double fio_rate(const NvmeBenchOptions& options, const fs::path& folder, Pattern pattern) {
  return run_fio({.file = folder / "fio",
                  .pattern = pattern == Pattern::Mixed ? "rw" : name_of(pattern),
                  .bytes = options.bytes / options.block_bytes * options.block_bytes,
                  .block_bytes = options.block_bytes,
                  .queue_depth = options.queue_depth});
}

// GB/s of one pattern, measured once on each side.
struct Pair {
  double strata = 0;
  double fio = 0;
};

enum class FirstTurn { Strata, Fio };

Pair measure(const NvmeBenchOptions& options, const fs::path& folder, StoreBench& store, Pattern pattern,
             FirstTurn first) {
  if (!fio_available()) return {store.run(pattern) * 1e-9, 0};
  if (first == FirstTurn::Strata) {
    const double strata = store.run(pattern);
    return {strata * 1e-9, fio_rate(options, folder, pattern) * 1e-9};
  }
  const double fio = fio_rate(options, folder, pattern);
  return {store.run(pattern) * 1e-9, fio * 1e-9};
}

}  // namespace

json run_nvme_bench(const NvmeBenchOptions& options) {
  check(options);
  const WorkFolder folder(options.dir);
  StoreBench store(options, folder.path());
  const bool with_fio = fio_available();
  std::array<Series, kPatterns.size()> series;
  for (unsigned round = 0; round <= options.rounds; ++round) {
    for (std::size_t i = 0; i < kPatterns.size(); ++i) {
      const FirstTurn first = round % 2 == 0 ? FirstTurn::Strata : FirstTurn::Fio;
      const Pair pair = measure(options, folder.path(), store, kPatterns[i], first);
      if (round == 0) continue;  // lays out both files
      series[i].strata.push_back(pair.strata);
      if (!with_fio) continue;
      series[i].fio.push_back(pair.fio);
      series[i].ratio.push_back(pair.strata / pair.fio);
    }
  }
  json result = {{"dir", options.dir.string()},
                 {"bytes", options.bytes},
                 {"block_bytes", options.block_bytes},
                 {"queue_depth", options.queue_depth},
                 {"rounds", options.rounds},
                 {"direct", store.direct()},
                 {"fio", with_fio},
                 {"fio_huge_pages", with_fio && fio_gets_huge_pages(options.block_bytes, options.queue_depth)}};
  for (std::size_t i = 0; i < kPatterns.size(); ++i) {
    json& entry = result[name_of(kPatterns[i])];
    entry["strata"] = summary("gb_per_s", series[i].strata);
    if (!with_fio) continue;
    entry["fio"] = summary("gb_per_s", series[i].fio);
    entry["ratio"] = summary("values", series[i].ratio);
  }
  return result;
}

std::string format_nvme_bench(const json& result) {
  std::string text = result.at("dir").get<std::string>() + ": " +
                     format_bytes(result.at("bytes").get<std::uint64_t>()) + ", blocks of " +
                     format_bytes(result.at("block_bytes").get<std::uint64_t>()) + ", depth " +
                     std::to_string(result.at("queue_depth").get<unsigned>()) + ", " +
                     std::to_string(result.at("rounds").get<unsigned>()) + " rounds, " +
                     (result.at("direct").get<bool>() ? "direct" : "buffered") + " I/O\n";
  text += "        strata GB/s (MAD)    fio GB/s (MAD)    strata/fio (MAD)\n";
  for (const Pattern pattern : kPatterns) {
    const json& entry = result.at(name_of(pattern));
    std::array<char, 32> cell{};
    std::snprintf(cell.data(), cell.size(), "%-6s", name_of(pattern));
    text += cell.data();
    for (const char* side : {"strata", "fio", "ratio"}) {
      if (!entry.contains(side)) continue;
      std::snprintf(cell.data(), cell.size(), "  %8.3f (%.3f)  ", entry[side].at("median").get<double>(),
                    entry[side].at("mad").get<double>());
      text += cell.data();
    }
    text += '\n';
  }
  if (!result.at("fio").get<bool>()) {
    text += "fio is not on PATH: no comparison\n";
  } else if (!result.at("fio_huge_pages").get<bool>()) {
    text +=
        "fio's buffers lie on small pages and the store's on huge ones, which flatters the store. For a fair "
        "comparison "
        "reserve huge pages first: sysctl vm.nr_hugepages=N\n";
  }
  return text;
}

}  // namespace strata::bench
