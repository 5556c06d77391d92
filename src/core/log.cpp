#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace strata::log {
namespace {

// Process-wide on purpose, against the rule on globals: stderr is process-wide, and a logger passed through every
// constructor would buy nothing. Kept out of spdlog's registry, which a program that embeds the engine may use itself.
spdlog::logger& logger() {
  static const std::unique_ptr<spdlog::logger> instance = [] {
    auto made = std::make_unique<spdlog::logger>("strata", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %l %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

void write(spdlog::level::level_enum level, std::string_view message) {
  logger().log(level, spdlog::string_view_t(message.data(), message.size()));
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::Debug:
      return spdlog::level::debug;
    case Level::Info:
      return spdlog::level::info;
    case Level::Warning:
      return spdlog::level::warn;
    case Level::Error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_level(Level level) {
  logger().set_level(to_spdlog(level));
}
void debug(std::string_view message) {
  write(spdlog::level::debug, message);
}
void info(std::string_view message) {
  write(spdlog::level::info, message);
}
void warning(std::string_view message) {
  write(spdlog::level::warn, message);
}
void error(std::string_view message) {
  write(spdlog::level::err, message);
}

void warning_once(std::string_view key, std::string_view message) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> seen;  // guarded by mutex
  {
    const std::lock_guard lock(mutex);
    if (!seen.emplace(key).second) return;
  }
  warning(message);
}

}  // namespace strata::log
