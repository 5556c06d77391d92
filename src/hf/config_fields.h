// Typed, checked access to the keys of one JSON object of a config.json.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace strata::hf {

// Larger than any size a real model has; keeps products of two sizes and vectors per layer from overflowing.
inline constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxLayers = 65536;

// Refers to the object; must not outlive it. Every member throws DataError with file, key and value when the value has
// the wrong type or range. Where a default is taken, an absent key yields it; null does too where `null` says so.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const std::string& key) const { return object_.contains(key); }
  // Present and not null.
  bool given(const std::string& key) const { return has(key) && !object_.at(key).is_null(); }
  const nlohmann::json& at(const std::string& key) const { return object_.at(key); }
  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }

  // A whole number in [1, max].
  std::int64_t size(const std::string& key, std::int64_t otherwise, std::int64_t max = kMaxSize) const;
  // The same; nothing when null.
  std::optional<std::int64_t> optional_size(const std::string& key, std::optional<std::int64_t> otherwise) const;
  // A finite number above 0.
  double positive(const std::string& key, double otherwise) const;
  double required_positive(const std::string& key) const;
  bool flag(const std::string& key, std::optional<bool> otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;

  // Always throws: "<where>: <key> is <value>, <expected>".
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace strata::hf
