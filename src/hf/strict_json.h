// JSON as it comes from a stranger: duplicate keys, absurd depth and broken syntax are refused with the place named.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace strata::hf {

// No file of a model folder nests deeper than about five levels; a bound keeps hostile input from costing memory.
inline constexpr int kMaxJsonDepth = 64;

// "line 3, column 5: ..." out of nlohmann's "[json.exception.parse_error.101] parse error at line 3, column 5: ...".
inline std::string parse_error_place(const std::string& what) {
  const std::size_t at = what.find(" at ");
  return at == std::string::npos ? what : what.substr(at + 4);
}

// Parses `text` into nlohmann::json, or ordered_json where the order of keys matters. nlohmann keeps the last of two
// equal keys without a word, Python's readers too, others the first: files that differ in meaning by reader are
// refused. Throws: DataError that begins with `where`.
template <typename Json>
Json parse_strict_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto examine = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth)
      throw DataError(where + ": nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    if (event == Json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_of_open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys_of_open_objects.back().insert(key).second) throw DataError(where + ": duplicate key \"" + key + '"');
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), examine);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(where + ": not valid JSON, " + parse_error_place(error.what()));
  }
}

}  // namespace strata::hf
