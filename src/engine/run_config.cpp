#include "engine/run_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "core/error.h"
#include "engine/config_values.h"
#include "engine/nearest_name.h"
#include "engine/run_config_table.h"

namespace strata::engine {
namespace {

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text) + "'";
}

// Flags are written with '-' or '_', and people carry the habit into files.
std::string normalised(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string text_for_message(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  return node.IsNull() ? "null" : node.IsSequence() ? "[...]" : "{...}";
}

// Reads the file and then the flags into one RunConfig and collects everything that is wrong on the way, because a user
// who has to start ten times to learn of ten mistakes is right to be angry.
class Parser {
 public:
  explicit Parser(const RunConfigSource& source) : source_(source), file_name_(source.file.string()) {
    for (const Setting& setting : settings_) {
      register_names(setting.name, setting.aliases, setting.shown);
      for (std::size_t dot = setting.name.find('.'); dot != std::string_view::npos;
           dot = setting.name.find('.', dot + 1)) {
        groups_.emplace(setting.name.substr(0, dot));
      }
    }
    for (const FixedKey& key : fixed_keys_) {
      register_names(key.name, key.aliases, Setting::Shown::Yes);
      if (const std::size_t dot = key.name.rfind('.'); dot != std::string_view::npos)
        groups_.emplace(key.name.substr(0, dot));
    }
    suggestions_.insert(suggestions_.end(), groups_.begin(), groups_.end());
  }

  void read_file(std::string_view text) {
    std::vector<YAML::Node> documents;
    try {
      documents = YAML::LoadAll(std::string(text));
    } catch (const YAML::Exception& failure) {
      problems_.push_back(at_line(failure.mark) + ": not YAML: " + failure.msg);
      return;
    }
    if (documents.empty() || (documents.size() == 1 && documents[0].IsNull())) return;
    if (documents.size() > 1) {
      problems_.push_back(file_name_ + ": holds " + std::to_string(documents.size()) + " documents; one is expected");
    } else if (!documents[0].IsMap()) {
      problems_.push_back(file_name_ + ": must be a map of keys to values");
    } else {
      read_map(documents[0], "", "");
    }
  }

  void read_flags() {
    given_.clear();  // a flag may repeat what the file says: it wins
    for (std::size_t i = 0; i < source_.flags.size(); ++i) {
      const std::string& token = source_.flags[i];
      if (!token.starts_with("--") || token.size() == 2) {
        problems_.push_back("unexpected argument " + in_quotes(token) + ": options begin with --");
        continue;
      }
      const std::size_t equals = token.find('=');
      const std::string flag = token.substr(0, equals);
      const std::string name = normalised(flag.substr(2));
      if (equals != std::string::npos) {
        read_flag(flag, name, token.substr(equals + 1));
      } else if (i + 1 < source_.flags.size() && !source_.flags[i + 1].starts_with("--")) {
        read_flag(flag, name, source_.flags[++i]);
      } else if (const Setting* setting = find_setting(name);
                 setting != nullptr && setting->bare_flag == Setting::BareFlag::MeansTrue) {
        read_flag(flag, name, "true");
      } else if (!is_known(name)) {
        unknown(flag, name);
      } else {
        problems_.push_back(flag + ": a value is missing");
      }
    }
  }

  // Throws the collected problems, or returns the configuration.
  RunConfig finish() {
    for (const Setting& setting : settings_) {
      if (const std::string violation = setting.violation(config_); !violation.empty()) {
        problems_.push_back(origin_of(setting.name) + std::string(setting.name) + ": " + violation);
      }
    }
    check_required();
    check_combinations();
    if (problems_.empty()) return config_;
    if (problems_.size() == 1) throw ConfigError(problems_.front());
    std::string message = "the configuration has " + std::to_string(problems_.size()) + " problems:";
    for (const std::string& problem : problems_) message += "\n  " + problem;
    throw ConfigError(message);
  }

 private:
  void register_names(std::string_view name, std::string_view aliases, Setting::Shown shown) {
    const auto add = [&](std::string_view alias) {
      names_.emplace(alias, name);
      if (shown == Setting::Shown::Yes) suggestions_.push_back(alias);
    };
    add(name);
    for_each_word(aliases, add);
  }

  const Setting* find_setting(const std::string& written) const {
    const auto name = names_.find(written);
    if (name == names_.end()) return nullptr;
    const auto found = std::find_if(settings_.begin(), settings_.end(),
                                    [&](const Setting& setting) { return setting.name == name->second; });
    return found == settings_.end() ? nullptr : &*found;
  }

  bool is_known(const std::string& name) const { return names_.contains(name) || groups_.contains(name); }

  std::string at_line(const YAML::Mark& mark) const {
    if (mark.is_null()) return file_name_;
    return file_name_ + ":" + std::to_string(mark.line + 1);
  }

  std::string origin_of(std::string_view name) const {
    const auto origin = origins_.find(name);
    return origin == origins_.end() ? "" : origin->second + ": ";
  }

  // `flag` is empty for the file.
  void read_map(const YAML::Node& map, const std::string& prefix, const std::string& flag) {
    for (const auto& entry : map) {
      const std::string origin = flag.empty() ? at_line(entry.first.Mark()) : flag;
      if (!entry.first.IsScalar()) {
        problems_.push_back(origin + ": a key must be a text");
        continue;
      }
      read_entry(origin, prefix + normalised(entry.first.Scalar()), entry.second, flag);
    }
  }

  void read_entry(const std::string& origin, const std::string& written, const YAML::Node& value,
                  const std::string& flag) {
    if (!is_known(written)) {
      unknown(origin, written);
      return;
    }
    const auto alias = names_.find(written);
    const std::string name = alias == names_.end() ? written : std::string(alias->second);
    if (const auto [previous, is_new] = given_.emplace(name, origin); !is_new) {
      problems_.push_back(origin + ": " + in_quotes(written) + " is given twice (before at " + previous->second + ")");
      return;
    }
    if (value.IsNull()) return;  // "key:" and "key: null" leave the default
    if (groups_.contains(name) && value.IsMap()) {
      read_map(value, name + ".", flag);
      return;
    }
    if (alias == names_.end()) {
      problems_.push_back(origin + ": " + in_quotes(written) + " is a group of keys, not a value");
      return;
    }
    assign(origin, written, name, value);
  }

  void assign(const std::string& origin, const std::string& written, const std::string& name, const YAML::Node& value) {
    try {
      if (const Setting* setting = find_setting(name)) {
        setting->set(config_, value);
        origins_[setting->name] = origin;
      } else {
        check_fixed(name, value);
      }
    } catch (const ConfigError& failure) {
      problems_.push_back(origin + ": " + written + ": " + failure.what());
    } catch (const YAML::Exception& failure) {
      problems_.push_back(origin + ": " + written + ": " + failure.msg);
    }
  }

  void check_fixed(const std::string& name, const YAML::Node& value) const {
    const auto key = std::find_if(fixed_keys_.begin(), fixed_keys_.end(),
                                  [&](const FixedKey& candidate) { return candidate.name == name; });
    bool allowed = false;
    for_each_word(key->allowed, [&](std::string_view word) {
      allowed = allowed || (value.IsScalar() && to_lower(scalar_text(value)) == word);
    });
    if (!allowed) {
      throw ConfigError("not supported yet: " + name + ": " + text_for_message(value) + "; " +
                        std::string(key->advice));
    }
  }

  void read_flag(const std::string& flag, const std::string& name, const std::string& value) {
    if (!is_known(name)) {
      unknown(flag, name);
      return;
    }
    // Lists and maps are written in YAML's flow style. Other values stay as typed: a prompt may hold a colon.
    const Setting* setting = find_setting(name);
    const bool structured = setting == nullptr || setting->get == nullptr || setting->values == "paths" ||
                            setting->values == "names" || setting->values == "data sets" ||
                            setting->name == "report_to";
    if (!structured || (!value.starts_with('[') && !value.starts_with('{'))) {
      read_entry(flag, name, YAML::Node(value), flag);
      return;
    }
    try {
      read_entry(flag, name, YAML::Load(value), flag);
    } catch (const YAML::Exception& failure) {
      problems_.push_back(flag + ": not YAML: " + failure.msg);
    }
  }

  void unknown(const std::string& origin, const std::string& written) {
    const std::string_view nearest = nearest_name(written, suggestions_);
    problems_.push_back(
        origin + ": unknown key " + in_quotes(written) +
        (nearest.empty() ? "; strata train --help lists all keys" : "; did you mean " + in_quotes(nearest) + "?"));
  }

  void check_required() {
    for (const std::string& name : source_.required) {
      const Setting* setting = find_setting(name);
      STRATA_EXPECTS(setting != nullptr && setting->get != nullptr, "'" + name + "' is not a key");
      const std::string value = setting->get(config_);
      if (!origins_.contains(setting->name) || value == "\"\"" || value == "[]") {
        problems_.push_back(name + " is missing: " + std::string(setting->help));
      }
    }
  }

  void check_split(const std::string& what, const StrataConfig::Placement::Split& split, const AutoTier& home) {
    if (!split.given()) return;
    const std::string key = "strata.placement.shares." + what;
    const double sum = split.host + split.nvme + split.device;
    if (std::fabs(sum - 1) > 1e-9) {
      const std::string device = split.device > 0 ? "device " + write_value(split.device) + ", " : "";
      problems_.push_back(key + ": " + device + "host " + write_value(split.host) + " and nvme " +
                          write_value(split.nvme) + " add up to " + write_value(sum) + ", not to 1");
    }
    if (home && *home != offload::TierKind::Nvme) {
      problems_.push_back(origin_of("strata.placement." + what) + "strata.placement." + what + " gives one home and " +
                          key + " two; keep one");
    }
    if (split.nvme > 0 && config_.strata.nvme.paths.empty()) {
      problems_.push_back(key + ".nvme needs strata.nvme.paths, a folder on the drive");
    }
  }

  // fp16 turns off the default of bf16, not what was written.
  void check_types() {
    if (config_.fp16 && config_.bf16) {
      if (origins_.contains("bf16")) {
        problems_.push_back(origin_of("fp16") + "fp16: true and bf16: true exclude each other (bf16 is at " +
                            origins_.at("bf16") + "); keep one");
      }
      config_.bf16 = false;
    }
    if (config_.strata.optimizer_states.master == MasterEncoding::Remainder && !config_.bf16) {
      problems_.push_back(origin_of("strata.optimizer_states.master") +
                          "strata.optimizer_states.master: remainder completes a bf16 weight; with " +
                          (config_.fp16 ? "fp16: true" : "bf16: false") + " there is none");
    }
    const ComputeChoice compute = config_.strata.compute;
    if ((compute == ComputeChoice::Bf16 && config_.fp16) || (compute == ComputeChoice::Fp16 && !config_.fp16)) {
      problems_.push_back(origin_of("strata.compute") + "strata.compute: " + write_value(compute) +
                          " is not the type of the weights, nor fp32");
    }
    if (config_.loss_scale > 0 && !config_.fp16) {
      problems_.push_back(origin_of("loss_scale") + "loss_scale needs fp16: true; other types train without one");
    }
    if (config_.initial_loss_scale < config_.min_loss_scale) {
      problems_.push_back(origin_of("initial_loss_scale") + "initial_loss_scale " +
                          write_value(config_.initial_loss_scale) + " is below min_loss_scale " +
                          write_value(config_.min_loss_scale));
    }
  }

  void check_combinations() {
    const std::int64_t micro = config_.per_device_train_batch_size;
    const std::int64_t accumulation = config_.gradient_accumulation_steps;
    // In floating point, so that absurd factors cannot overflow.
    const double product =
        static_cast<double>(micro) * static_cast<double>(accumulation) * static_cast<double>(source_.world_size);
    if (config_.global_batch_size > 0 && static_cast<double>(config_.global_batch_size) != product) {
      problems_.push_back(origin_of("global_batch_size") + "global_batch_size " +
                          std::to_string(config_.global_batch_size) + " is not per_device_train_batch_size " +
                          std::to_string(micro) + " x gradient_accumulation_steps " + std::to_string(accumulation) +
                          " x " + std::to_string(source_.world_size) + " ranks");
    }
    check_types();
    check_split("param", config_.strata.placement.shares.param, config_.strata.placement.param);
    check_split("optimizer", config_.strata.placement.shares.optimizer, config_.strata.placement.optimizer);
    if (config_.val_size > 0 && !config_.val_datasets.empty()) {
      problems_.push_back(origin_of("val_size") + "val_size and val_datasets are both given; keep one");
    }
    if (config_.eval_steps > 0 && config_.val_size == 0 && config_.val_datasets.empty()) {
      problems_.push_back(origin_of("eval_steps") + "eval_steps needs val_datasets or val_size");
    }
  }

  const RunConfigSource& source_;
  const std::string file_name_;
  const std::vector<Setting> settings_ = run_config_settings();
  const std::vector<FixedKey> fixed_keys_ = run_config_fixed_keys();
  std::map<std::string, std::string_view, std::less<>> names_;  // name or alias -> name
  std::set<std::string, std::less<>> groups_;                   // "strata", "strata.nvme", ...
  std::vector<std::string_view> suggestions_;
  RunConfig config_;
  std::map<std::string, std::string> given_;         // name -> where, within the file or within the flags
  std::map<std::string_view, std::string> origins_;  // name -> where its value comes from
  std::vector<std::string> problems_;
};

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens and then fails to read; an empty file sets failbit on `text`, which is no failure.
  if (stream && stream.peek() != std::ifstream::traits_type::eof()) text << stream.rdbuf();
  if (!stream.is_open() || stream.bad() || std::filesystem::is_directory(path)) {
    const int reason = std::filesystem::is_directory(path) ? EISDIR : errno;
    throw ConfigError("cannot read the configuration " + path.string() + ": " + std::system_category().message(reason));
  }
  return text.str();
}

}  // namespace

RunConfig load_run_config(const RunConfigSource& source) {
  return parse_run_config(source.file.empty() ? "" : read_text(source.file), source);
}

RunConfig parse_run_config(std::string_view text, const RunConfigSource& source) {
  Parser parser(source);
  parser.read_file(text);
  parser.read_flags();
  return parser.finish();
}

LrSchedule RunConfig::lr_schedule(std::int64_t total_steps) const {
  return {.kind = lr_scheduler_type,
          .base = learning_rate,
          .total_steps = total_steps,
          .warmup_steps = resolve_warmup_steps(warmup_steps, warmup_ratio, total_steps)};
}

}  // namespace strata::engine
