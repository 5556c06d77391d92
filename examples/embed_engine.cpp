// The engine inside a program of your own: trains a Hugging Face folder on token ids for a few steps.
// usage: embed_engine MODEL_DIR SWAP_DIR OUT_DIR
#include <cstdio>

#include "engine/engine.h"

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: embed_engine MODEL_DIR SWAP_DIR OUT_DIR\n", stderr), 2;
  strata::engine::EngineConfig config;
  config.model = argv[1];
  config.max_tokens = 8;
  config.nvme_paths = {argv[2]};
  config.param_home = config.optimizer_home = strata::offload::TierKind::Nvme;
  try {
    const auto engine = strata::engine::Engine::create(config);
    strata::data::Batch batch{.sequences = 1,
                              .tokens_each = 8,
                              .tokens = {1, 2, 3, 4, 5, 6, 7, 8},
                              .labels = {2, 3, 4, 5, 6, 7, 8, 9},
                              .target_tokens = 8};
    for (int step = 1; step <= 5; ++step) {
      std::printf("step %d loss %.4f\n", step, engine->train_step({&batch, 1}, 1e-4).loss);
    }
    engine->export_model(argv[3]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
