// strata tune: how each drive wants to be used, measured and remembered.
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "core/bytes.h"
#include "core/error.h"
#include "nvme/drive_probe.h"
#include "nvme/tuner.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nvme::DeviceProfile;

constexpr const char* kAbout =
    "Measures how fast the drive below each folder reads, writes and does both, chooses request size, queue depth, "
    "ring "
    "mode and bursts, and remembers them for later runs ($STRATA_DRIVE_PROFILES, else strata/drives.json in "
    "$XDG_CACHE_HOME or ~/.cache). Stop other work on the drive while it runs.";

struct Tuned {
  fs::path directory;
  std::string drive;
  bool direct = false;
  bool saved = false;
  nvme::TuneReport report;
  nvme::SustainedReport sustained;  // no rates: not asked for
};

template <typename... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string gb_per_second(double rate) {
  return line("%.3f GB/s", rate / 1e9);
}

// "1MiB", "128KiB": as run.yaml takes it.
std::string exact_bytes(std::uint64_t bytes) {
  if (bytes % (std::uint64_t{1} << 20) == 0) return std::to_string(bytes >> 20) + "MiB";
  return bytes % 1024 == 0 ? std::to_string(bytes >> 10) + "KiB" : std::to_string(bytes);
}

std::string duplex_text(const nvme::TuneReport& report) {
  if (!report.half_duplex) return "full duplex: reads and writes together are faster than one after the other";
  return report.profile.burst_bytes > 0
             ? "half duplex, and mixing costs: reads and writes take turns of " +
                   exact_bytes(report.profile.burst_bytes)
             : "half duplex: reads and writes together are as fast as one after the other; mixing costs nothing";
}

void print_table(const Tuned& tuned) {
  const nvme::TuneReport& report = tuned.report;
  const DeviceProfile& chosen = report.profile;
  std::cout << tuned.directory.string() << " (drive " << tuned.drive << (tuned.direct ? "" : ", buffered") << "), "
            << report.rounds << " rounds; * is chosen\n"
            << "     block  depth       read       write    one each way  +/-\n";
  for (const nvme::SizeRow& row : report.sizes) {
    const bool mark = row.block_bytes == chosen.block_bytes && row.depth == chosen.queue_depth;
    std::cout << line("  %c %6s  %5u  %5.3f GB/s  %5.3f GB/s  %5.3f GB/s  %4.1f %%\n", mark ? '*' : ' ',
                      exact_bytes(row.block_bytes).c_str(), row.depth, row.read_rate / 1e9, row.write_rate / 1e9,
                      row.rate / 1e9, row.spread * 100);
  }
  if (report.rings.empty()) std::cout << "  io_uring is refused here: measured with threads\n";
  for (const nvme::RingRow& row : report.rings) {
    std::cout << line(
        "  %c ring %-8s  %5.3f GB/s one each way, +/- %.1f %%, %.3f CPU seconds a GB; all CPUs busy: %.3f "
        "GB/s\n",
        row.ring == chosen.ring ? '*' : ' ', nvme::name_of(row.ring).c_str(), row.rate / 1e9, row.spread * 100,
        row.cpu_per_byte * 1e9, row.busy_rate / 1e9);
  }
  std::cout << "    alone: read " << gb_per_second(report.read_rate) << ", write " << gb_per_second(report.write_rate)
            << "\n";
  for (const nvme::MixRow& row : report.mixes) {
    const std::string how = row.burst_bytes == 0 ? "mixed" : "bursts of " + exact_bytes(row.burst_bytes);
    std::cout << line("  %c %-16s  %5.3f GB/s, +/- %.1f %%\n", row.burst_bytes == chosen.burst_bytes ? '*' : ' ',
                      how.c_str(), row.rate / 1e9, row.spread * 100);
  }
  std::cout << "  " << duplex_text(report) << "\n";
  if (!tuned.sustained.rates.empty()) {
    std::cout << "  one long write: first " << gb_per_second(tuned.sustained.first_rate) << ", last "
              << gb_per_second(tuned.sustained.last_rate) << "\n";
  }
  std::cout << (tuned.saved ? "  saved in " + nvme::profile_file().string() : std::string("  not saved")) << "\n\n";
}

// One block size and depth are for all paths in run.yaml: the largest that a drive asked for. Without them each path
// uses its own profile.
std::string run_config_section(const std::vector<Tuned>& all) {
  std::size_t block = 0;
  unsigned depth = 0;
  std::string paths;
  for (const Tuned& tuned : all) {
    block = std::max(block, tuned.report.profile.block_bytes);
    depth = std::max(depth, tuned.report.profile.queue_depth);
    paths += (paths.empty() ? "" : ", ") + json(fs::absolute(tuned.directory).string()).dump();
  }
  return "strata:\n  nvme: {paths: [" + paths + "], block_size: " + exact_bytes(block) +
         ", queue_depth: " + std::to_string(depth) + "}\n";
}

json to_json(const Tuned& tuned) {
  const nvme::TuneReport& report = tuned.report;
  const DeviceProfile& chosen = report.profile;
  json sizes = json::array(), rings = json::array(), mixes = json::array();
  for (const nvme::SizeRow& row : report.sizes) {
    sizes.push_back({{"block_bytes", row.block_bytes},
                     {"queue_depth", row.depth},
                     {"read_rate", row.read_rate},
                     {"write_rate", row.write_rate},
                     {"rate", row.rate},
                     {"spread", row.spread}});
  }
  for (const nvme::RingRow& row : report.rings) {
    rings.push_back({{"ring", nvme::name_of(row.ring)},
                     {"rate", row.rate},
                     {"busy_rate", row.busy_rate},
                     {"cpu_seconds_per_gb", row.cpu_per_byte * 1e9},
                     {"spread", row.spread}});
  }
  for (const nvme::MixRow& row : report.mixes) {
    mixes.push_back({{"burst_bytes", row.burst_bytes}, {"rate", row.rate}, {"spread", row.spread}});
  }
  json result{{"dir", tuned.directory.string()},
              {"drive", tuned.drive},
              {"direct", tuned.direct},
              {"rounds", report.rounds},
              {"sizes", sizes},
              {"rings", rings},
              {"mixes", mixes},
              {"half_duplex", report.half_duplex},
              {"saved", tuned.saved},
              {"chosen",
               {{"block_bytes", chosen.block_bytes},
                {"queue_depth", chosen.queue_depth},
                {"ring", nvme::name_of(chosen.ring)},
                {"burst_bytes", chosen.burst_bytes},
                {"read_rate", chosen.read_rate},
                {"write_rate", chosen.write_rate},
                {"mixed_rate", chosen.mixed_rate}}}};
  if (!tuned.sustained.rates.empty()) {
    result["sustained"] = {{"window_bytes", tuned.sustained.window_bytes},
                           {"rates", tuned.sustained.rates},
                           {"first_rate", tuned.sustained.first_rate},
                           {"last_rate", tuned.sustained.last_rate}};
  }
  return result;
}

Tuned tune_one(const nvme::ProbeOptions& options, const nvme::TuneOptions& how) {
  Tuned tuned{
      .directory = options.directory, .drive = nvme::drive_of(options.directory), .report = {}, .sustained = {}};
  nvme::DriveProbe probe(options);
  tuned.direct = probe.direct();
  tuned.report = nvme::tune(probe, how);
  if (options.sustained_bytes > 0) {
    tuned.sustained = probe.write_sustained(tuned.report.profile);
    // What a long run gets. Only the fall counts: space that was never written is slower than what a run writes again.
    const double kept = tuned.sustained.last_rate / tuned.sustained.first_rate;
    tuned.report.profile.write_rate *= std::min(1.0, kept);
  }
  tuned.saved = nvme::save_profile(options.directory, tuned.report.profile);
  return tuned;
}

void print_plan(const nvme::ProbeOptions& options, const nvme::TuneOptions& how) {
  std::cout << options.directory.string() << ": drive " << nvme::drive_of(options.directory)
            << "; would measure for about " << line("%.3g", how.seconds) << " s with "
            << format_bytes(options.bytes + options.sustained_bytes) << " of drive space and save the profile in "
            << nvme::profile_file().string() << "\n";
}

}  // namespace

int run_tune(const Arguments& arguments) {
  CLI::App app(kAbout, "tune");
  std::vector<std::string> directories;
  std::string bytes, sustained;
  nvme::TuneOptions how;
  bool as_json = false, dry_run = false;
  app.add_option("--nvme", directories, "a folder on the drive; may be given several times")->required();
  app.add_option("--bytes", bytes, "size of the file that is measured on, at least 8MiB (default 1GiB)");
  app.add_option("--seconds", how.seconds, "about, per folder (default 30)")->check(CLI::PositiveNumber);
  app.add_option("--sustained", sustained, "also write so much in one go, to see the rate past the drive's fast cache");
  app.add_flag("--json", as_json, "print one JSON object");
  app.add_flag("--dry-run", dry_run, "check folders and space, say what would be done, write nothing");
  if (!parse_options(app, arguments)) return kDone;
  std::vector<nvme::ProbeOptions> probes;
  for (const std::string& directory : directories) {
    nvme::ProbeOptions options{.directory = directory};
    if (!bytes.empty()) options.bytes = parse_bytes(bytes);
    if (!sustained.empty()) options.sustained_bytes = parse_bytes(sustained);
    nvme::DriveProbe::check(options);  // all of them before the first is measured
    probes.push_back(options);
  }
  std::vector<Tuned> all;
  json result{{"drives", json::array()}, {"profiles", nvme::profile_file().string()}};
  for (const nvme::ProbeOptions& options : probes) {
    if (dry_run) {
      print_plan(options, how);
      continue;
    }
    all.push_back(tune_one(options, how));
    if (!as_json) print_table(all.back());
    result["drives"].push_back(to_json(all.back()));
  }
  if (dry_run) return kDone;
  result["run_config"] = run_config_section(all);
  if (as_json) {
    std::cout << result.dump(2) << "\n";
  } else {
    std::cout << "Runs use the saved profiles by themselves. To fix block size and depth in run.yaml:\n\n"
              << run_config_section(all);
  }
  return kDone;
}

}  // namespace strata::cli
