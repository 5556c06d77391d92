#include "hf/config_fields.h"

#include <cmath>

#include "core/error.h"

namespace strata::hf {
namespace {

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMostCharacters = 80;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMostCharacters) text = text.substr(0, kMostCharacters) + "...";
  return text;
}

}  // namespace

void ConfigFields::refuse(const std::string& key, const std::string& expected) const {
  const std::string value = has(key) ? " is " + shown(object_.at(key)) : " is absent";
  throw DataError(where_ + ": " + key + value + ", " + expected);
}

std::int64_t ConfigFields::size(const std::string& key, std::int64_t otherwise, std::int64_t max) const {
  if (!has(key)) return otherwise;
  const nlohmann::json& value = object_.at(key);
  const std::string expected = "expected a whole number from 1 to " + std::to_string(max);
  if (!value.is_number_integer()) refuse(key, expected);
  // A number above int64 is stored unsigned and must not wrap to a negative one.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) refuse(key, expected);
  const auto number = value.get<std::int64_t>();
  if (number < 1 || number > max) refuse(key, expected);
  return number;
}

std::optional<std::int64_t> ConfigFields::optional_size(const std::string& key,
                                                        std::optional<std::int64_t> otherwise) const {
  if (!has(key)) return otherwise;
  if (object_.at(key).is_null()) return std::nullopt;
  return size(key, 0);
}

double ConfigFields::positive(const std::string& key, double otherwise) const {
  return has(key) ? required_positive(key) : otherwise;
}

double ConfigFields::required_positive(const std::string& key) const {
  if (!has(key) || !object_.at(key).is_number()) refuse(key, "expected a number above 0");
  const double number = object_.at(key).get<double>();
  if (!std::isfinite(number) || number <= 0) refuse(key, "expected a number above 0");
  return number;
}

bool ConfigFields::flag(const std::string& key, std::optional<bool> otherwise) const {
  if (!has(key) && otherwise) return *otherwise;
  if (!has(key) || !object_.at(key).is_boolean()) refuse(key, "expected true or false");
  return object_.at(key).get<bool>();
}

std::string ConfigFields::text(const std::string& key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!object_.at(key).is_string()) refuse(key, "expected a string");
  return object_.at(key).get<std::string>();
}

}  // namespace strata::hf
