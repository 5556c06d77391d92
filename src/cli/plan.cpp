// strata plan: where each byte would go. Reads config.json, no weights.
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/nproc.h"
#include "cli/run_options.h"
#include "core/bytes.h"
#include "core/error.h"
#include "engine/drive_wear.h"
#include "engine/engine.h"
#include "engine/from_run_config.h"

namespace strata::cli {
namespace {

constexpr const char* kHelp =
    R"(usage: strata plan --model DIR [--config run.yaml] [options of train] [--world-size N] [--json]

Prints where parameters, gradients, optimizer states and buffers would live and how many bytes a step would move. Reads
config.json and no weights. Refuses with exit code 3 what does not fit and says what would. With --world-size, what each of N
ranks holds and sends (strata.zero_stage, strata.ranks_per_node); budgets are those of one rank.

  strata plan --model ./smollm2 --strata.budgets.device 640MiB --strata.budgets.host 384MiB --strata.nvme.paths /mnt/nvme
)";

nlohmann::json to_json(const engine::PerTier& bytes) {
  return {{"device", bytes[0]}, {"host", bytes[1]}, {"nvme", bytes[2]}};
}

nlohmann::json to_json(const engine::MemoryPlan& plan) {
  nlohmann::json rows = nlohmann::json::array();
  for (const engine::PlanRow& row : plan.rows) rows.push_back({{"what", row.what}, {"bytes", to_json(row.bytes)}});
  return {
      {"placement",
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
        {"link", plan.link_per_step},
        {"sent",
         {{"all", plan.sent_per_step.all}, {"node", plan.sent_per_step.node}, {"across", plan.sent_per_step.across}}}}},
      {"states_bytes", plan.states_bytes},
      {"padding", plan.padding},
      {"whole_states_bytes", plan.whole_states_bytes}};
}

// What one of several ranks holds and sends; nothing for one.
std::string ranks_text(const engine::MemoryPlan& plan, std::size_t ranks) {
  if (ranks == 1) return {};
  std::ostringstream out;
  out << "each of " << ranks << " ranks keeps " << format_bytes(plan.states_bytes)
      << " of parameters, gradients and optimizer states, " << std::fixed << std::setprecision(1)
      << 100 * static_cast<double>(plan.states_bytes) * (1 - plan.padding) /
             static_cast<double>(plan.whole_states_bytes)
      << " % of the " << format_bytes(plan.whole_states_bytes) << " that one rank alone would, and "
      << 100 * plan.padding << " % of padding\n"
      << "per step each sends " << format_bytes(plan.sent_per_step.total());
  if (plan.sent_per_step.node + plan.sent_per_step.across > 0) {
    out << ": " << format_bytes(plan.sent_per_step.all) << " among all ranks, " << format_bytes(plan.sent_per_step.node)
        << " inside its node, " << format_bytes(plan.sent_per_step.across) << " to its place in other nodes";
  }
  out << "\n";
  return out.str();
}

// The same run in every stage: what a rank would keep and send, and where it all would live.
std::string stages_text(engine::EngineConfig config, std::size_t ranks, std::size_t per_node) {
  std::ostringstream out;
  out << "  stage        keeps   sends a step   parameters, gradients, optimizer states on\n";
  for (int stage = 0; stage <= 3; ++stage) {
    config.zero_stage = stage;
    out << "  " << stage << std::setw(18);
    try {
      const engine::MemoryPlan plan = engine::Engine::plan(config, ranks, per_node);
      out << format_bytes(plan.states_bytes) << std::setw(15) << format_bytes(plan.sent_per_step.total()) << "   "
          << name_of(plan.placement.param) << ", " << name_of(plan.placement.grad) << ", "
          << name_of(plan.placement.optimizer) << "\n";
    } catch (const OutOfBudget&) {
      out << "does not fit\n";
    } catch (const ConfigError&) {
      out << "not with these settings\n";
    }
  }
  return out.str();
}

}  // namespace

int run_plan(const Arguments& arguments) {
  Arguments words = arguments;
  const std::optional<std::size_t> asked = take_ranks(words, "--world-size");
  const std::size_t ranks = asked.value_or(1);
  const RunOptions options = read_run_options(words, {"model_name_or_path"}, ranks);
  if (options.help) {
    std::cout << kHelp << "\n" << engine::run_config_help();
    return kDone;
  }
  const auto per_node = static_cast<std::size_t>(options.config.strata.ranks_per_node.value_or(1));
  const engine::MemoryPlan plan =
      engine::Engine::plan(engine::engine_config(options.config), asked.value_or(0), per_node);
  if (options.output == RunOptions::Output::Json) {
    std::cout << to_json(plan).dump(2) << "\n";
    return kDone;
  }
  std::cout << "parameters on " << name_of(plan.placement.param) << ", gradients on " << name_of(plan.placement.grad)
            << ", optimizer states on " << name_of(plan.placement.optimizer) << ", "
            << engine::description_of(plan.updates) << "\n"
            << to_table(plan) << "per step, about: NVMe read " << format_bytes(plan.nvme_read_per_step) << ", written "
            << format_bytes(plan.nvme_written_per_step) << "; between host and device "
            << format_bytes(plan.link_per_step) << "\n"
            << ranks_text(plan, ranks);
  if (ranks > 1) std::cout << stages_text(engine::engine_config(options.config), ranks, per_node);
  if (plan.nvme_written_per_step > 0 && options.config.max_steps > 0) {
    const engine::DriveWear wear{options.config.strata.nvme.rated_writes, options.config.strata.nvme.wear_limit};
    // Laying out the states writes each of their bytes once.
    std::cout << wear.forecast(plan.need[2], plan.nvme_written_per_step, options.config.max_steps, 0) << "\n";
    wear.check(plan.need[2], plan.nvme_written_per_step, options.config.max_steps);
  }
  return kDone;
}

}  // namespace strata::cli
