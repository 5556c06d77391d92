#include "cli/datasets.h"

#include <sstream>

#include "cli/child.h"
#include "core/error.h"
#include "core/log.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using engine::DatasetConfig;

bool is_token_file(const DatasetConfig& dataset) {
  return fs::path(dataset.path).extension() == ".tok";
}

void check_exit(const ChildResult& result, const std::string& what) {
  if (result.exit_code == 0) return;
  const std::string message = what + " failed (exit code " + std::to_string(result.exit_code) + "; see above)";
  if (result.exit_code == 2) throw ConfigError(message);
  throw DataError(message);
}

// The tool tells the layouts of chats apart by itself.
std::string tool_type(const std::string& type) {
  if (type == "messages" || type == "sharegpt") return "chat";
  return type == "alpaca" ? "auto" : type;
}

std::vector<std::string> prepare_command(const std::string& model, const std::vector<DatasetConfig>& datasets,
                                         std::int64_t max_tokens, const fs::path& out) {
  std::vector<std::string> command{python_program(), tools_folder() / "prepare_data.py", "--model", model, "--data"};
  for (const DatasetConfig& dataset : datasets) {
    if (dataset.type != datasets.front().type) {
      throw ConfigError("datasets of different types in one run are not supported yet: " + datasets.front().type +
                        " and " + dataset.type);
    }
    if (!dataset.fields.empty()) {
      throw ConfigError("datasets: fields is not supported yet; rename the columns of " + dataset.path);
    }
    if (is_token_file(dataset)) throw ConfigError("a token file must be the only data set: " + dataset.path);
    command.push_back(dataset.path);
  }
  command.insert(command.end(), {"--type", tool_type(datasets.front().type), "--max-tokens", std::to_string(max_tokens),
                                 "--out", out});
  return command;
}

void run_prepare(const std::vector<std::string>& command) {
  const ChildResult result = run_child(command);
  check_exit(result, "preparing the data");
  std::string summary = result.out;
  while (!summary.empty() && summary.back() == '\n') summary.pop_back();
  log::info("data: " + summary);
}

std::string first_line_trimmed(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

fs::path prepare_file(const std::string& model, const DatasetConfig& dataset, std::int64_t max_tokens,
                      const fs::path& out) {
  if (is_token_file(dataset)) return dataset.path;
  fs::create_directories(out.parent_path());
  run_prepare(prepare_command(model, {dataset}, max_tokens, out));
  return out;
}

PreparedData prepare_datasets(const engine::RunConfig& config, const fs::path& folder) {
  PreparedData data;
  const bool ready = config.datasets.size() == 1 && is_token_file(config.datasets.front());
  fs::create_directories(folder);
  if (ready) {
    if (config.val_size > 0) throw ConfigError("val_size cannot split a token file; name val_datasets instead");
    data.train = config.datasets.front().path;
  } else {
    data.train = folder / "train.tok";
    std::vector<std::string> command =
        prepare_command(config.model_name_or_path, config.datasets, config.max_seq_length, data.train);
    if (config.val_size >= 1) {
      throw ConfigError("val_size as a number of samples is not supported yet; give a share below 1, or val_datasets");
    }
    if (config.val_size > 0) {
      data.validation = folder / "validation.tok";
      std::ostringstream size;
      size << config.val_size;
      command.insert(command.end(), {"--val-fraction", size.str(), "--val-out", data.validation->string(), "--seed",
                                     std::to_string(config.seed)});
    }
    run_prepare(command);
  }
  if (!config.val_datasets.empty()) {
    if (config.val_size > 0) throw ConfigError("val_size and val_datasets exclude each other");
    if (config.val_datasets.size() == 1 && is_token_file(config.val_datasets.front())) {
      data.validation = config.val_datasets.front().path;
    } else {
      data.validation = folder / "validation.tok";
      run_prepare(
          prepare_command(config.model_name_or_path, config.val_datasets, config.max_seq_length, *data.validation));
    }
  }
  return data;
}

std::vector<std::int64_t> encode(const std::string& model, const std::string& text) {
  const ChildResult result =
      run_child({python_program(), tools_folder() / "tokenizer.py", "encode", "--model", model, "--", text});
  check_exit(result, "encoding the prompt");
  std::istringstream in(result.out);
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; in >> id;) ids.push_back(id);
  return ids;
}

std::string decode(const std::string& model, const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return {};
  std::vector<std::string> command{python_program(), tools_folder() / "tokenizer.py", "decode", "--model", model, "--"};
  for (const std::int64_t id : ids) command.push_back(std::to_string(id));
  const ChildResult result = run_child(command);
  check_exit(result, "decoding the sample");
  return first_line_trimmed(result.out);
}

}  // namespace strata::cli
