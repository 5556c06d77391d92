#include "cli/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "engine/checkpoint.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using engine::RunConfig;

void check_output_dir(const RunConfig& config, const std::optional<fs::path>& resume) {
  std::error_code error;
  fs::create_directories(config.output_dir, error);
  if (error) throw IoError({error.value(), "create", config.output_dir.string(), 0, 0, "set another output_dir"});
  if (::access(config.output_dir.c_str(), W_OK) != 0) {
    throw IoError({errno, "write to", config.output_dir.string(), 0, 0, "set another output_dir"});
  }
  if (resume) return;
  for (const std::int64_t step : engine::checkpoint_steps(config.output_dir)) {
    const std::string name = "checkpoint-" + std::to_string(step);
    if (!config.overwrite_output_dir) {
      throw ConfigError(config.output_dir.string() +
                        " holds checkpoints of an earlier run: resume_from_checkpoint: true continues it, "
                        "overwrite_output_dir: true sets them aside (superseded-" +
                        name + ") and starts anew");
    }
    // Set aside, not deleted; and not left there, or a later resume would take them for this run's.
    const fs::path aside = config.output_dir / ("superseded-" + name);
    fs::remove_all(aside);
    fs::rename(config.output_dir / name, aside);
    log::info("set aside " + name + " of an earlier run as " + aside.string());
  }
}

std::optional<fs::path> checkpoint_to_resume(const RunConfig& config) {
  switch (config.resume_from_checkpoint.from) {
    case engine::ResumeConfig::From::Start:
      return std::nullopt;
    case engine::ResumeConfig::From::Path:
      engine::check_checkpoint(config.resume_from_checkpoint.path);
      return config.resume_from_checkpoint.path;
    case engine::ResumeConfig::From::Newest:
      break;
  }
  std::optional<fs::path> newest = engine::newest_checkpoint(config.output_dir);
  if (!newest) log::info("no checkpoint in " + config.output_dir.string() + " yet: starting from the model");
  return newest;
}

void write_resolved(const RunConfig& config) {
  std::ofstream out(config.output_dir / "config.yaml");
  out << engine::to_yaml(config);
  out.close();
  if (!out) throw IoError({errno, "write", (config.output_dir / "config.yaml").string(), 0, 0, {}});
}

std::string text_of(const std::optional<fs::path>& path) {
  return path ? path->string() : std::string();
}

std::optional<fs::path> path_of(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<fs::path>(text);
}

}  // namespace

RunStart start_run(const RunConfig& config) {
  RunStart start;
  start.resume = checkpoint_to_resume(config);
  check_output_dir(config, start.resume);
  write_resolved(config);
  start.data = prepare_datasets(config, config.output_dir / "data");
  return start;
}

std::string to_text(const RunStart& start) {
  const nlohmann::json json{{"resume", text_of(start.resume)},
                            {"train", start.data.train.string()},
                            {"validation", text_of(start.data.validation)}};
  return json.dump();
}

RunStart run_start_from(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {path_of(json.at("resume").get<std::string>()),
          {json.at("train").get<std::string>(), path_of(json.at("validation").get<std::string>())}};
}

}  // namespace strata::cli
