// Texts, paths and data sets.
#include "engine/config_values.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/error.h"
#include "engine/nearest_name.h"

namespace strata::engine {
namespace {

constexpr std::string_view kDatasetTypeChoices = "auto | alpaca | sharegpt | messages | completion | text | tokens";
constexpr std::array<std::string_view, 7> kDatasetTypes = {"auto",       "alpaca", "sharegpt", "messages",
                                                           "completion", "text",   "tokens"};

// YAML 1.2 double-quoted style, section 7.3.1; JSON strings are a subset of it.
std::string quote_yaml(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string required_text(const YAML::Node& node, std::string_view what) {
  std::string text;
  read_value(node, text);
  if (text.empty()) throw ConfigError(std::string(what) + " is empty");
  return text;
}

void read_dataset_key(const std::string& key, const YAML::Node& value, DatasetConfig& out) {
  constexpr std::array<std::string_view, 4> kKeys = {"path", "type", "split", "fields"};
  if (key == "path") {
    out.path = required_text(value, "path");
  } else if (key == "type") {
    out.type = to_lower(scalar_text(value));
    if (std::find(kDatasetTypes.begin(), kDatasetTypes.end(), out.type) == kDatasetTypes.end()) {
      throw ConfigError(in_quotes(out.type) + " is not one of " + std::string(kDatasetTypeChoices));
    }
  } else if (key == "split") {
    if (scalar_text(value) != "train") throw ConfigError("not supported yet: split other than train; name one file");
  } else if (key == "fields") {
    if (!value.IsMap()) throw ConfigError("fields must be a map {our name: name in the file}");
    for (const auto& field : value)
      out.fields[required_text(field.first, "name")] = required_text(field.second, "name");
  } else {
    const std::string_view nearest = nearest_name(key, kKeys);
    throw ConfigError("unknown key " + in_quotes(key) + " of a data set" +
                      (nearest.empty() ? "" : "; did you mean " + in_quotes(nearest) + "?"));
  }
}

DatasetConfig dataset_from(const YAML::Node& node) {
  DatasetConfig dataset;
  if (!node.IsMap()) {
    dataset.path = required_text(node, "path");
    return dataset;
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string key = scalar_text(entry.first);
    if (!seen.insert(key).second) throw ConfigError(in_quotes(key) + " is given twice in one data set");
    if (!entry.second.IsNull()) read_dataset_key(key, entry.second, dataset);
  }
  if (dataset.path.empty()) throw ConfigError("a data set needs a path");
  return dataset;
}

// A list, or "a,b".
std::vector<std::string> distinct_texts(const YAML::Node& node, const std::string& what) {
  std::vector<std::string> texts;
  if (node.IsSequence()) {
    for (const auto& entry : node) texts.push_back(required_text(entry, "a " + what));
  } else {
    std::string rest = required_text(node, "the " + what);
    for (std::size_t comma = rest.find(','); comma != std::string::npos; comma = rest.find(',')) {
      texts.push_back(rest.substr(0, comma));
      rest.erase(0, comma + 1);
    }
    texts.push_back(rest);
  }
  for (const std::string& text : texts) {
    if (text.empty()) throw ConfigError("a " + what + " is empty");
    if (std::count(texts.begin(), texts.end(), text) > 1) throw ConfigError(in_quotes(text) + " is given twice");
  }
  return texts;
}

}  // namespace

void read_value(const YAML::Node& node, std::string& out) {
  if (!node.IsScalar()) throw ConfigError("a text is expected");
  out = node.Scalar();  // blanks may matter in a prompt
}

void read_value(const YAML::Node& node, std::filesystem::path& out) {
  out = required_text(node, "the path");
}

void read_value(const YAML::Node& node, ResumeConfig& out) {
  std::string text;
  read_value(node, text);
  try {
    bool newest = false;
    read_value(node, newest);
    out = {newest ? ResumeConfig::From::Newest : ResumeConfig::From::Start, {}};
  } catch (const ConfigError&) {
    out = {ResumeConfig::From::Path, required_text(node, "the path of the checkpoint")};
  }
}

void read_value(const YAML::Node& node, std::vector<std::filesystem::path>& out) {
  const std::vector<std::string> texts = distinct_texts(node, "path");
  out.assign(texts.begin(), texts.end());
}

void read_value(const YAML::Node& node, std::vector<std::string>& out) {
  out = distinct_texts(node, "name");
}

void read_value(const YAML::Node& node, std::vector<DatasetConfig>& out) {
  std::vector<DatasetConfig> datasets;
  if (node.IsSequence()) {
    for (const auto& entry : node) datasets.push_back(dataset_from(entry));
  } else {
    datasets.push_back(dataset_from(node));
  }
  out = std::move(datasets);
}

std::string write_value(const std::string& value) {
  return quote_yaml(value);
}

std::string write_value(const std::filesystem::path& value) {
  return quote_yaml(value.string());
}

std::string write_value(const ResumeConfig& value) {
  if (value.from == ResumeConfig::From::Path) return write_value(value.path);
  return write_value(value.from == ResumeConfig::From::Newest);
}

std::string write_value(const std::vector<std::filesystem::path>& value) {
  std::string text;
  for (const auto& path : value) text += (text.empty() ? "" : ", ") + write_value(path);
  return "[" + text + "]";
}

std::string write_value(const std::vector<std::string>& value) {
  std::string text;
  for (const std::string& name : value) text += (text.empty() ? "" : ", ") + write_value(name);
  return "[" + text + "]";
}

std::string write_value(const std::vector<DatasetConfig>& value) {
  std::string text;
  for (const auto& dataset : value) {
    text += (text.empty() ? "" : ", ") + ("{path: " + write_value(dataset.path)) + ", type: " + dataset.type;
    std::string fields;
    for (const auto& [name, in_file] : dataset.fields) {
      fields += (fields.empty() ? "" : ", ") + write_value(name) + ": " + write_value(in_file);
    }
    text += (fields.empty() ? "" : ", fields: {" + fields + "}") + "}";
  }
  return "[" + text + "]";
}

std::string syntax_of(const std::string&) {
  return "text";
}

std::string syntax_of(const std::filesystem::path&) {
  return "path";
}

std::string syntax_of(const ResumeConfig&) {
  return "true | false | path";
}

std::string syntax_of(const std::vector<std::filesystem::path>&) {
  return "paths";
}

std::string syntax_of(const std::vector<std::string>&) {
  return "names";
}

std::string syntax_of(const std::vector<DatasetConfig>&) {
  return "data sets";
}

}  // namespace strata::engine
