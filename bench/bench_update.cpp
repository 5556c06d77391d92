#include "bench/bench_update.h"

#include <algorithm>
#include <cerrno>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <thread>

#include "bench/bench_adam.h"
#include "bench/drive_rates.h"
#include "bench/fio.h"
#include "bench/update_rig.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/page_mapping.h"
#include "core/scratch_folder.h"
#include "core/statistics.h"
#include "nvme/device_profile.h"

namespace strata::bench {
namespace {

using nlohmann::json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr int kWarmUp = 3;  // after the second step the pages are planned with what was measured

void check(const UpdateBenchOptions& options) {
  if (options.rounds == 0) throw ConfigError("bench update: at least one round is needed");
  if (options.states.empty() || options.cached.empty()) throw ConfigError("bench update: no states or no cached share");
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(options.dir, error);
  if (error) throw IoError({error.value(), "statvfs", options.dir.string(), 0, 0, "name an existing directory"});
  if (options.numel > space.available / 28) {
    throw ConfigError("bench update: the states of " + std::to_string(options.numel) +
                      " parameters and fio's file need 28 bytes each; " + format_bytes(space.available) +
                      " are free in " + options.dir.string() + "; lower --numel");
  }
}

FioJob fio_job(const std::filesystem::path& folder, std::uint64_t bytes) {
  const nvme::DeviceProfile profile = nvme::load_profile(folder).value_or(nvme::DeviceProfile{});
  return {.files = {folder / "fio"},
          .pattern = "rw",
          .bytes = bytes,
          .block_bytes = profile.block_bytes,
          .queue_depth = profile.queue_depth};
}

json row_of(const UpdateBenchOptions& options, const std::filesystem::path& folder, const engine::DriveRates& rates,
            const std::string& states, double cached) {
  UpdateRig rig({.folder = folder,
                 .optimizer = optimizer_of_states(states),
                 .numel = options.numel,
                 .cached_share = cached,
                 .slot_bytes = options.slot_bytes,
                 .threads = options.threads,
                 .rates = rates});
  UpdateMeasure last;
  for (int step = 0; step < kWarmUp; ++step) last = rig.step();
  const std::uint64_t moved = last.read_bytes + last.written_bytes;
  const FioJob job = fio_job(folder, moved);
  const bool with_fio = options.with_fio && fio_available() && moved >= job.block_bytes;
  RestedFio fio(options.idle);
  if (with_fio) fio.run(job);  // lays out its file
  // Asked while the update has taken its own pages of the machine's reserve.
  const bool fio_huge = with_fio && fio_gets_huge_pages(job);
  std::vector<double> seconds, updating, ours, theirs, ratios;
  for (unsigned round = 0; round < options.rounds; ++round) {
    const auto run_fio = [&] {
      if (with_fio) theirs.push_back(fio.run(job) / kGiB);
    };
    if (round % 2 == 1) run_fio();
    std::this_thread::sleep_for(options.idle);
    last = rig.step();
    seconds.push_back(last.seconds);
    updating.push_back(last.update_seconds);
    ours.push_back(static_cast<double>(last.read_bytes + last.written_bytes) / last.seconds / kGiB);
    if (round % 2 == 0) run_fio();
    if (with_fio) ratios.push_back(ours.back() / theirs.back());
  }
  const auto all = static_cast<double>(2 * rig.state_bytes());
  json row{{"states", states},
           {"cached", cached},
           {"state_bytes_per_parameter", static_cast<double>(rig.state_bytes()) / static_cast<double>(options.numel)},
           {"read_bytes", last.read_bytes},
           {"written_bytes", last.written_bytes},
           {"cached_share", 1 - static_cast<double>(last.read_bytes + last.written_bytes) / all},
           {"seconds", median(seconds)},
           {"update_seconds", median(updating)},
           {"gib_s", median(ours)},
           {"fio_huge_pages", fio_huge},
           {"huge_pages_wanted", fio_huge_pages(job) + ceil_div(rig.host_bytes(), kHugePageBytes)},
           {"fio_gib_s", nullptr},
           {"ratio_median", nullptr},
           {"ratio_interval", nullptr},
           {"samples", {{"update", ours}, {"fio", theirs}}}};
  if (with_fio) {
    row["fio_gib_s"] = median(theirs);
    row["ratio_median"] = median(ratios);
    row["ratio_interval"] = median_interval(ratios);
  }
  return row;
}

}  // namespace

json run_update_bench(const UpdateBenchOptions& options) {
  check(options);
  for (const std::string& states : options.states) (void)optimizer_of_states(states);
  const engine::DriveRates rates = options.rates ? *options.rates : measure_drive_rates(options.dir);
  const ScratchFolder folder(options.dir, "strata-bench-update");
  json rows = json::array();
  bool fio_huge = true;
  std::uint64_t wanted = 0;
  for (const std::string& states : options.states) {
    for (const double cached : options.cached) {
      json row = row_of(options, folder.path(), rates, states, cached);
      const auto moved = [](const json& of) {
        return of["read_bytes"].get<double>() + of["written_bytes"].get<double>();
      };
      const double first = rows.empty() ? moved(row) : moved(rows.front());
      fio_huge = fio_huge && row["fio_huge_pages"].get<bool>();
      wanted = std::max(wanted, row["huge_pages_wanted"].get<std::uint64_t>());
      row["bytes_to_first"] = first > 0 ? json(moved(row) / first) : json(nullptr);
      rows.push_back(std::move(row));
    }
  }
  return {{"numel", options.numel},
          {"rounds", options.rounds},
          {"slot_bytes", options.slot_bytes},
          {"dir", options.dir.string()},
          {"fio", options.with_fio && fio_available()},
          {"fio_huge_pages", fio_huge},
          {"huge_pages_wanted", wanted},
          {"drive_rates", {{"read", rates.read}, {"write", rates.write}, {"mixed", rates.mixed}}},
          {"rows", std::move(rows)}};
}

std::string format_update_bench(const json& result) {
  std::ostringstream out;
  out << std::fixed << result["dir"].get<std::string>() << ": " << result["numel"] << " parameters, pages of "
      << format_bytes(result["slot_bytes"]) << ", " << result["rounds"] << " rounds\n"
      << "  states           cached  read B/p  written B/p  to first  seconds  updating  GiB/s    fio  update/fio [95 "
         "%]\n";
  const auto numel = result["numel"].get<double>();
  for (const json& row : result["rows"]) {
    out << "  " << std::left << std::setw(16) << row["states"].get<std::string>() << std::right << std::setprecision(2)
        << std::setw(7) << row["cached_share"].get<double>() << std::setw(10) << row["read_bytes"].get<double>() / numel
        << std::setw(13) << row["written_bytes"].get<double>() / numel << std::setw(10);
    row["bytes_to_first"].is_null() ? out << "-" : out << row["bytes_to_first"].get<double>();
    out << std::setprecision(3) << std::setw(9) << row["seconds"].get<double>() << std::setw(10)
        << row["update_seconds"].get<double>() << std::setprecision(2) << std::setw(7) << row["gib_s"].get<double>();
    if (!row["ratio_median"].is_null()) {
      const json& interval = row["ratio_interval"];
      out << std::setw(7) << row["fio_gib_s"].get<double>() << std::setprecision(3) << std::setw(8)
          << row["ratio_median"].get<double>() << " [" << interval[0].get<double>() << ", " << interval[1].get<double>()
          << "]";
    }
    out << "\n";
  }
  if (!result["fio"].get<bool>()) {
    out << "fio did not run: no comparison\n";
  } else if (!result["fio_huge_pages"].get<bool>()) {
    out << "fio's buffers lie on small pages and ours on huge ones, which flatters ours. For a fair comparison reserve "
           "huge pages first: sysctl vm.nr_hugepages="
        << result["huge_pages_wanted"] << "\n";
  }
  return out.str();
}

}  // namespace strata::bench
