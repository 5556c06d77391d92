#include "engine/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <span>

#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"
#include "engine/all_ranks.h"
#include "engine/replace_folder.h"
#include "hf/export.h"
#include "hf/file_handle.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kManifest = "strata.json";
constexpr const char* kPrefix = "checkpoint-";
constexpr int kVersion = 1;
constexpr const char* kSave = "save a checkpoint";

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string checksum_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw IoError({errno, "open", file.string(), 0, 0, {}});
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    XXH3_64bits_update(&state, buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw IoError({errno, "read", file.string(), 0, 0, {}});
  return hex(XXH3_64bits_digest(&state));
}

void write_text(const fs::path& path, const std::string& text) {
  hf::FileHandle file = hf::FileHandle::create(path);
  file.append(std::as_bytes(std::span(text)));
  file.sync_and_close();
}

json read_json(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw DataError(path.string() + ": missing, so the checkpoint is not complete");
  try {
    return json::parse(in);
  } catch (const json::exception& error) {
    throw DataError(path.string() + ": not readable as JSON (" + error.what() + ")");
  }
}

// What changes bits and so must not change silently between a run and its continuation.
json numerics_of(const Engine& engine) {
  // With tied embeddings, or gradients that are rounded as they are added, the order of micro-batches is one of sums.
  const MemoryPlan& plan = engine.memory_plan();
  const bool order_counts = engine.model_config().tie_word_embeddings || plan.grad_type != DType::F32;
  const bool vertical =
      plan.accumulation == zero::Accumulation::Vertical && order_counts && engine.config().micro_batches > 1;
  json frozen = json::array();  // the layers
  for (const std::string& name : engine.frozen_groups()) frozen.push_back(name);
  return {{"frozen", frozen},
          {"tied_accumulation", vertical ? "vertical" : "horizontal"},
          {"grad_type", std::string(name_of(plan.grad_type))},
          {"compute", engine.compute_name()},
          {"loss_chunk_tokens", engine.config().loss_chunk_tokens},
          {"param_type", std::string(name_of(engine.config().param_type))},
          {"batch_size", engine.config().batch_size},
          {"micro_batches", engine.config().micro_batches},
          {"ranks", engine.communicator().world()}};
}

std::string trainer_state_text(const TrainerState& state) {
  json history = json::array();
  for (const LogEntry& entry : state.history) {
    history.push_back({{"step", entry.step},
                       {"epoch", entry.epoch},
                       {"loss", entry.loss},
                       {"learning_rate", entry.learning_rate},
                       {"grad_norm", entry.grad_norm}});
  }
  return json{{"global_step", state.run.step}, {"epoch", state.epoch}, {"log_history", history}}.dump(2);
}

void write_manifest(const fs::path& folder, const Engine& engine, const TrainerState& state) {
  json files = json::array();
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  for (const fs::path& file : names) {
    files.push_back(
        {{"name", file.filename().string()}, {"bytes", fs::file_size(file)}, {"xxh3_64", checksum_of(file)}});
  }
  json manifest{{"format", "strata-checkpoint"},
                {"version", kVersion},
                {"step", state.run.step},
                {"skipped", state.run.skipped},
                {"sampler", {{"epoch", state.sampler.epoch}, {"position", state.sampler.position}}},
                {"seed", state.seed},
                {"numerics", numerics_of(engine)},
                {"files", files}};
  const LossScaleState& loss_scale = state.run.loss_scale;
  if (loss_scale.scale > 0) {
    manifest["loss_scale"] = {{"scale", loss_scale.scale}, {"good_steps", loss_scale.good_steps}};
  }
  write_text(folder / kManifest, manifest.dump(2));
}

std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (name.rfind(kPrefix, 0) != 0) return std::nullopt;
  const std::string digits = name.substr(std::string(kPrefix).size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

fs::path folder_of(const fs::path& output_dir, std::int64_t step) {
  return output_dir / (kPrefix + std::to_string(step));
}

// Keeps the `keep` newest up to step `saved`; 0 keeps all.
void delete_old(const fs::path& output_dir, std::int64_t saved, std::int64_t keep) {
  std::vector<std::int64_t> steps = checkpoint_steps(output_dir);
  // Later ones are of a run that was given up. If they counted, the checkpoint just saved would be the oldest and go.
  std::erase_if(steps, [saved](std::int64_t step) { return step > saved; });
  for (std::size_t i = 0; keep > 0 && i + static_cast<std::size_t>(keep) < steps.size(); ++i) {
    std::error_code error;
    fs::remove_all(folder_of(output_dir, steps[i]), error);
    if (error) log::warning("could not delete " + folder_of(output_dir, steps[i]).string() + ": " + error.message());
  }
}

}  // namespace

std::vector<std::int64_t> checkpoint_steps(const fs::path& output_dir) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(output_dir, error), end; !error && it != end; it.increment(error)) {
    if (const auto step = step_of(it->path())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

fs::path save_checkpoint(Engine& engine, const TrainerState& state, const fs::path& output_dir, std::int64_t keep) {
  Communicator& comm = engine.communicator();
  const fs::path final_folder = folder_of(output_dir, state.run.step);
  const fs::path temporary = output_dir / (".tmp-" + final_folder.filename().string());
  try {
    on_first_rank(comm, kSave, [&] {
      fs::remove_all(temporary);  // of a run that was killed while it saved
      fs::create_directories(temporary);
    });
    engine.save_states(temporary);
    on_first_rank(comm, kSave, [&] {
      hf::write_config(engine.config().model / "config.json", temporary, engine.config().param_type);
      hf::copy_folder_files(engine.config().model, temporary);
      write_text(temporary / "trainer_state.json", trainer_state_text(state));
      write_manifest(temporary, engine, state);
      hf::sync_folder(temporary);
      replace_folder(temporary, final_folder);
      delete_old(output_dir, state.run.step, keep);
    });
  } catch (...) {
    std::error_code ignored;
    if (comm.rank() == 0) fs::remove_all(temporary, ignored);
    throw;
  }
  return final_folder;
}

void check_checkpoint(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint)) throw DataError(checkpoint.string() + ": no such checkpoint folder");
  const json manifest = read_json(checkpoint / kManifest);
  try {
    if (manifest.at("format") != "strata-checkpoint")
      throw DataError(checkpoint.string() + ": not a Strata checkpoint");
    if (manifest.at("version") != kVersion) {
      throw DataError(checkpoint.string() + ": format version " + manifest.at("version").dump() +
                      ", this program reads " + std::to_string(kVersion));
    }
    for (const json& entry : manifest.at("files")) {
      const fs::path file = checkpoint / entry.at("name").get<std::string>();
      if (!fs::is_regular_file(file)) throw DataError(file.string() + ": missing");
      const auto bytes = entry.at("bytes").get<std::uint64_t>();
      if (fs::file_size(file) != bytes) {
        throw DataError(file.string() + ": " + std::to_string(fs::file_size(file)) + " bytes, expected " +
                        std::to_string(bytes));
      }
      if (checksum_of(file) != entry.at("xxh3_64").get<std::string>()) {
        throw CorruptionError(file.string() + ": the bytes are not those that were written (checksum differs)");
      }
    }
  } catch (const json::exception& error) {
    throw DataError((checkpoint / kManifest).string() + ": " + error.what());
  }
}

std::optional<fs::path> newest_checkpoint(const fs::path& output_dir) {
  std::vector<std::int64_t> steps = checkpoint_steps(output_dir);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path folder = folder_of(output_dir, *step);
    try {
      check_checkpoint(folder);
      return folder;
    } catch (const Error& error) {
      log::warning("passing over " + folder.string() + ": " + error.what());
    }
  }
  return std::nullopt;
}

std::optional<fs::path> newest_checkpoint(Communicator& comm, const fs::path& output_dir) {
  std::string name;
  on_first_rank(comm, "look for checkpoints", [&] {
    const std::optional<fs::path> newest = newest_checkpoint(output_dir);
    if (newest) name = newest->filename().string();
  });
  name = broadcast_text(comm, name);
  if (name.empty()) return std::nullopt;
  on_every_rank(comm, "look for checkpoints", [&] {
    if (!fs::is_directory(output_dir / name)) {
      throw DataError((output_dir / name).string() +
                      ": rank 0 sees this checkpoint, this rank does not; output_dir must be on a file system that all "
                      "ranks share");
    }
  });
  return output_dir / name;
}

namespace {

// What is beside the tensors. `is_first`: this rank is the one that warns.
TrainerState read_trainer_state(const Engine& engine, const fs::path& checkpoint, bool is_first) {
  const json manifest = read_json(checkpoint / kManifest);
  TrainerState state;
  try {
    state.run.step = manifest.at("step").get<std::int64_t>();
    state.run.skipped = manifest.at("skipped").get<std::int64_t>();
    if (const auto scale = manifest.find("loss_scale"); scale != manifest.end()) {
      state.run.loss_scale = {scale->at("scale").get<double>(), scale->at("good_steps").get<std::int64_t>()};
    }
    state.sampler.epoch = manifest.at("sampler").at("epoch").get<std::uint64_t>();
    state.sampler.position = manifest.at("sampler").at("position").get<std::uint64_t>();
    state.seed = manifest.at("seed").get<std::uint64_t>();
    const json now = numerics_of(engine);
    for (const auto& [key, value] : manifest.at("numerics").items()) {
      if (now.at(key) == value || !is_first) continue;
      log::warning("resuming with " + key + " " + now.at(key).dump() + "; the checkpoint was made with " +
                   value.dump() + ", so the results will not be bit-equal to an uninterrupted run");
    }
    const json trainer = read_json(checkpoint / "trainer_state.json");
    state.epoch = trainer.at("epoch").get<double>();
    for (const json& entry : trainer.at("log_history")) {
      const auto number = [&entry](const char* key) {
        return entry.at(key).is_null() ? 0.0 : entry.at(key).get<double>();
      };
      state.history.push_back({entry.at("step").get<std::int64_t>(), number("epoch"), number("loss"),
                               number("learning_rate"), number("grad_norm")});
    }
  } catch (const json::exception& error) {
    throw DataError(checkpoint.string() + ": " + error.what());
  }
  return state;
}

}  // namespace

TrainerState load_checkpoint(Engine& engine, const fs::path& checkpoint) {
  Communicator& comm = engine.communicator();
  TrainerState state;
  on_every_rank(comm, "read a checkpoint", [&] { state = read_trainer_state(engine, checkpoint, comm.rank() == 0); });
  engine.load_states(checkpoint, state.run);
  return state;
}

}  // namespace strata::engine
