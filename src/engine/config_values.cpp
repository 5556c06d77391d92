// Numbers, sizes and booleans.
#include "engine/config_values.h"

#include <yaml-cpp/yaml.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::engine {
namespace {

// from_chars knows no leading plus.
std::string_view without_plus(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return text;
}

// The whole text as a finite number; from_chars depends on no locale and reads neither hexadecimal nor octal.
std::optional<double> number_from(std::string_view text) {
  text = without_plus(text);
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::int64_t integer_from(const std::string& text) {
  std::int64_t value = 0;
  const std::string_view digits = without_plus(text);
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure == std::errc{} && end == digits.data() + digits.size()) return value;

  const std::optional<double> number = number_from(text);
  if (!number) throw ConfigError(in_quotes(text) + " is not a whole number");
  if (std::trunc(*number) != *number) throw ConfigError(in_quotes(text) + " must be a whole number");
  // Above 2^53 a floating-point text no longer names one integer.
  if (std::fabs(*number) > 9007199254740992.0) throw ConfigError(in_quotes(text) + " is too large");
  return static_cast<std::int64_t>(*number);
}

}  // namespace

std::string scalar_text(const YAML::Node& node) {
  if (node.IsNull()) return "";
  if (!node.IsScalar()) throw ConfigError("one value is expected, not a list or a map");
  const std::string& text = node.Scalar();
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text) + "'";
}

bool is_auto(std::string_view text) {
  return to_lower(text) == "auto";
}

std::string to_lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

void read_value(const YAML::Node& node, bool& out) {
  const std::string text = to_lower(scalar_text(node));
  if (text == "true" || text == "yes" || text == "on") {
    out = true;
  } else if (text == "false" || text == "no" || text == "off") {
    out = false;
  } else {
    throw ConfigError(in_quotes(scalar_text(node)) + " is not true or false");
  }
}

void read_value(const YAML::Node& node, std::int64_t& out) {
  out = integer_from(scalar_text(node));
}

void read_value(const YAML::Node& node, double& out) {
  const std::string text = scalar_text(node);
  const std::optional<double> number = number_from(text);
  if (!number) throw ConfigError(in_quotes(text) + " is not a finite number");
  out = *number;
}

void read_value(const YAML::Node& node, AutoBytes& out) {
  const std::string text = scalar_text(node);
  out = is_auto(text) ? AutoBytes() : AutoBytes(parse_bytes(text));
}

void read_value(const YAML::Node& node, AutoCount& out) {
  const std::string text = scalar_text(node);
  out = is_auto(text) ? AutoCount() : AutoCount(integer_from(text));
}

void read_value(const YAML::Node& node, RecomputeChoice& out) {
  const std::string text = to_lower(scalar_text(node));
  if (is_auto(text)) {
    out.layers = std::nullopt;
  } else if (text == "all") {
    out.layers = RecomputeChoice::kAll;
  } else if (text == "none") {
    out.layers = 0;
  } else {
    const std::int64_t layers = integer_from(text);
    if (layers < 0) throw ConfigError(in_quotes(text) + " must be 0 or more");
    out.layers = layers;
  }
}

std::string write_value(bool value) {
  return value ? "true" : "false";
}

std::string write_value(std::int64_t value) {
  return std::to_string(value);
}

std::string write_value(double value) {
  std::array<char, 32> text{};
  const auto [end, failure] = std::to_chars(text.data(), text.data() + text.size(), value);  // shortest that reads back
  STRATA_EXPECTS(failure == std::errc{}, "32 characters hold every double");
  return {text.data(), end};
}

std::string write_value(const AutoBytes& value) {
  return value ? std::to_string(*value) : "auto";
}

std::string write_value(const AutoCount& value) {
  return value ? std::to_string(*value) : "auto";
}

std::string write_value(const RecomputeChoice& value) {
  if (!value.layers) return "auto";
  if (*value.layers == RecomputeChoice::kAll) return "all";
  return *value.layers == 0 ? "none" : std::to_string(*value.layers);
}

std::string syntax_of(bool) {
  return "true | false";
}

std::string syntax_of(std::int64_t) {
  return "whole number";
}

std::string syntax_of(double) {
  return "number";
}

std::string syntax_of(const AutoBytes&) {
  return "auto | bytes";
}

std::string syntax_of(const RecomputeChoice&) {
  return "auto | all | none | whole number";
}

std::string syntax_of(const AutoCount&) {
  return "auto | whole number";
}

}  // namespace strata::engine
