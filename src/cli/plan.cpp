// strata plan: where each byte would go. Reads config.json, no weights.
#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/run_options.h"
#include "core/bytes.h"
#include "engine/drive_wear.h"
#include "engine/engine.h"
#include "engine/from_run_config.h"

namespace strata::cli {
namespace {

constexpr const char* kHelp = R"(usage: strata plan --model DIR [--config run.yaml] [options of train] [--json]

Prints where parameters, gradients, optimizer states and buffers would live and how many bytes a step would move. Reads
config.json and no weights. Refuses with exit code 3 what does not fit and says what would.

  strata plan --model ./smollm2 --strata.budgets.device 640MiB --strata.budgets.host 384MiB --strata.nvme.paths /mnt/nvme
)";

nlohmann::json to_json(const engine::PerTier& bytes) {
  return {{"device", bytes[0]}, {"host", bytes[1]}, {"nvme", bytes[2]}};
}

nlohmann::json to_json(const engine::MemoryPlan& plan) {
  nlohmann::json rows = nlohmann::json::array();
  for (const engine::PlanRow& row : plan.rows) rows.push_back({{"what", row.what}, {"bytes", to_json(row.bytes)}});
  return {{"placement",
           {{"param", name_of(plan.placement.param)},
            {"grad", name_of(plan.placement.grad)},
            {"optimizer", name_of(plan.placement.optimizer)}}},
          {"rows", rows},
          {"need", to_json(plan.need)},
          {"budgets", to_json(plan.budgets)},
          {"slot_bytes", plan.slot_bytes},
          {"slots", plan.slots},
          {"look_ahead_bytes", plan.look_ahead_bytes},
          {"updates", {{"device_share", plan.updates.device_share}, {"streamed_share", plan.updates.streamed_share}}},
          {"per_step",
           {{"nvme_read", plan.nvme_read_per_step},
            {"nvme_written", plan.nvme_written_per_step},
            {"link", plan.link_per_step}}}};
}

}  // namespace

int run_plan(const Arguments& arguments) {
  const RunOptions options = read_run_options(arguments, {"model_name_or_path"});
  if (options.help) {
    std::cout << kHelp << "\n" << engine::run_config_help();
    return kDone;
  }
  const engine::MemoryPlan plan = engine::Engine::plan(engine::engine_config(options.config));
  if (options.output == RunOptions::Output::Json) {
    std::cout << to_json(plan).dump(2) << "\n";
    return kDone;
  }
  std::cout << "parameters on " << name_of(plan.placement.param) << ", gradients on " << name_of(plan.placement.grad)
            << ", optimizer states on " << name_of(plan.placement.optimizer) << ", "
            << engine::description_of(plan.updates) << "\n"
            << to_table(plan) << "per step, about: NVMe read " << format_bytes(plan.nvme_read_per_step) << ", written "
            << format_bytes(plan.nvme_written_per_step) << "; between host and device "
            << format_bytes(plan.link_per_step) << "\n";
  if (plan.nvme_written_per_step > 0 && options.config.max_steps > 0) {
    const engine::DriveWear wear{options.config.strata.nvme.rated_writes, options.config.strata.nvme.wear_limit};
    // Laying out the states writes each of their bytes once.
    std::cout << wear.forecast(plan.need[2], plan.nvme_written_per_step, options.config.max_steps, 0) << "\n";
    wear.check(plan.need[2], plan.nvme_written_per_step, options.config.max_steps);
  }
  return kDone;
}

}  // namespace strata::cli
