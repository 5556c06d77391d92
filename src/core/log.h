// One line per event that an operator cares about, on stderr. Results go to stdout, never through here.
#pragma once

#include <string_view>

namespace strata::log {

enum class Level { Debug, Info, Warning, Error };

void set_level(Level level);
void debug(std::string_view message);
void info(std::string_view message);
void warning(std::string_view message);
void error(std::string_view message);
// Logs a warning the first time this `key` is seen in the process.
void warning_once(std::string_view key, std::string_view message);

}  // namespace strata::log
