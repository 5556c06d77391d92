#include "bench/requested_steps.h"

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/step_model.h"
#include "bench/uncached_traffic.h"

namespace strata::bench {
namespace {

using nlohmann::json;

engine::EngineConfig config_of(const StepBenchOptions& options, StatesHome home, const std::filesystem::path& model) {
  if (home == StatesHome::Nvme) return nvme_config(options, model);
  if (home == StatesHome::Host) return host_config(options, model);
  return compute_config(options, model);
}

}  // namespace

void run_requested_steps(const StepBenchOptions& options, StatesHome home, std::istream& in, std::ostream& out,
                         const Guard& guard) {
  const ModelFolder folder(options);
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(config_of(options, home, folder.path()));
  guard([&] {
    const std::vector<data::Batch> batches = batches_of(engine->config(), options.vocab);
    const DriveTraffic uncached = uncached_traffic(*engine);
    out << json{{"parameters", engine->parameters()},
                {"compute", engine->compute_name()},
                {"description", engine->description()},
                {"recomputed_layers", options.layers - static_cast<std::int64_t>(engine->memory_plan().kept_graphs)},
                {"uncached_read_bytes", uncached.read},
                {"uncached_written_bytes", uncached.written}}
               .dump()
        << std::endl;
    for (std::string request; std::getline(in, request);) {
      const std::uint64_t sent = engine->sent().total();
      const engine::StepSummary step = settled_step(*engine, batches);
      out << json{{"seconds", step.seconds},
                  {"forward", step.forward_seconds},
                  {"backward", step.backward_seconds},
                  {"optimizer", step.optimizer_seconds},
                  {"stall", step.stall_seconds},
                  {"nvme_read_bytes", step.nvme_read},
                  {"nvme_written_bytes", step.nvme_written},
                  {"sent_bytes", (engine->sent().total() - sent) / kStepsUntilSettled},
                  {"loss", step.loss}}
                 .dump()
          << std::endl;
    }
    return 0;
  });
}

}  // namespace strata::bench
