// Training checkpoints: output_dir/checkpoint-N, complete or absent. Format: docs/checkpoint.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "engine/engine.h"

namespace strata::engine {

// One line of trainer_state.json's log_history, which tools of the Hugging Face Trainer plot.
struct LogEntry {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
};

// Everything beside tensors that continues a run.
struct TrainerState {
  RunState run;
  data::SamplerState sampler;
  double epoch = 0;
  std::uint64_t seed = 0;
  std::vector<LogEntry> history;
};

// Called by every rank. Writes output_dir/checkpoint-<step> under a temporary name, fsyncs, renames; then deletes the
// oldest ones beyond `keep` (0: all stay). Each rank writes its own part of the tensors; rank 0 does all else, while
// the others wait in a collective: longest for the checksums, so the collective time-out must be longer than reading
// the states once. Independent of placement, tiers and ranks; needs no swap file. Throws, on every rank: IoError;
// earlier checkpoints stay intact.
std::filesystem::path save_checkpoint(Engine& engine, const TrainerState& state,
                                      const std::filesystem::path& output_dir, std::int64_t keep);

// The newest checkpoint of output_dir that is complete: manifest present, every file with its size and checksum. Others
// are passed over with a warning that says why. Nothing when there is none.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& output_dir);
// Called by every rank: rank 0 looks, and all must see what it finds. Throws: DataError where one does not.
std::optional<std::filesystem::path> newest_checkpoint(Communicator& comm, const std::filesystem::path& output_dir);

// Throws: DataError saying what is missing or wrong.
void check_checkpoint(const std::filesystem::path& checkpoint);

// Called by every rank, whatever the number of ranks that saved. Reads tensors and state into the engine. Throws:
// DataError; a warning where a setting that changes bits differs.
TrainerState load_checkpoint(Engine& engine, const std::filesystem::path& checkpoint);

// Steps of the checkpoints in output_dir, ascending, complete or not.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& output_dir);

}  // namespace strata::engine
