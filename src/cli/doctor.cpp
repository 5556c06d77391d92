// strata doctor: what this machine can do for a run, what will be slow and why.
#include <iomanip>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "core/log.h"
#include "engine/doctor.h"

namespace strata::cli {
namespace {

using engine::Finding;
using nlohmann::json;

constexpr const char* kAbout =
    "Says what of this machine a run can use, what will be slow and what to do about it: GPUs, NCCL, processor, "
    "memory, "
    "io_uring, drives. Example: strata doctor --nvme /mnt/nvme";

json to_json(const std::vector<Finding>& findings) {
  json rows = json::array();
  for (const Finding& finding : findings) {
    rows.push_back({{"subject", finding.subject},
                    {"verdict", name_of(finding.verdict)},
                    {"text", finding.text},
                    {"advice", finding.advice},
                    {"facts", finding.facts}});
  }
  return {{"versions", {{"strata", STRATA_VERSION}, {"git", STRATA_GIT_HASH}, {"torch", STRATA_TORCH_VERSION}}},
          {"findings", rows}};
}

void print(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, std::min<std::size_t>(finding.subject.size(), 24));
  std::cout << "strata " << STRATA_VERSION << " (git " << STRATA_GIT_HASH << "), torch " << STRATA_TORCH_VERSION
            << "\n";
  for (const Finding& finding : findings) {
    std::cout << "  " << std::left << std::setw(9) << name_of(finding.verdict) << std::setw(static_cast<int>(width))
              << finding.subject << "  " << finding.text << "\n";
    if (!finding.advice.empty()) std::cout << std::string(13, ' ') << "-> " << finding.advice << "\n";
  }
}

}  // namespace

int run_doctor(const Arguments& arguments) {
  CLI::App app(kAbout, "doctor");
  std::vector<std::string> folders;
  bool as_json = false;
  app.add_option("--nvme", folders, "a folder on a drive for a run; may be given several times (default: this folder)")
      ->allow_extra_args(false);
  app.add_flag("--json", as_json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  if (folders.empty()) folders = {"."};
  log::set_level(log::Level::Error);  // what would be a warning of a run is a line of the report
  const std::vector<Finding> findings = engine::examine_machine({folders.begin(), folders.end()});
  if (as_json) {
    std::cout << to_json(findings).dump(2) << "\n";
  } else {
    print(findings);
  }
  return kDone;
}

}  // namespace strata::cli
