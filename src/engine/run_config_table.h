// The one table of what a configuration may hold. Parsing, checking, to_yaml, --help and docs/config.md all come from
// it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run_config.h"

namespace YAML {
class Node;
}

namespace strata::engine {

struct Setting {
  enum class Shown : std::uint8_t { Yes, No };
  // A flag without a value: an error, or the same as "true".
  enum class BareFlag : std::uint8_t { Refused, MeansTrue };

  std::string_view section;
  std::string_view name;     // with dots: "strata.nvme.paths"
  std::string_view aliases;  // separated by blanks
  std::string_view help;
  std::string values;  // what may be written, for people
  BareFlag bare_flag = BareFlag::Refused;
  Shown shown = Shown::Yes;
  std::function<void(RunConfig&, const YAML::Node&)> set;  // throws ConfigError
  std::function<std::string(const RunConfig&)> get;  // one line of YAML; empty function: written by other settings
  std::function<std::string(const RunConfig&)> violation;  // what is wrong with the value; "" = nothing
};

// A key that other trainers know, accepted only with the value that Strata works by.
struct FixedKey {
  std::string_view name;
  std::string_view aliases;
  std::string_view allowed;  // values separated by blanks, in lower case
  std::string_view advice;   // completes "not supported yet: packing: true; "
};

// In the order in which they are written and shown.
std::vector<Setting> run_config_settings();
std::vector<FixedKey> run_config_fixed_keys();

// Calls `visit` with each word of a list separated by blanks.
void for_each_word(std::string_view list, const std::function<void(std::string_view)>& visit);

}  // namespace strata::engine
