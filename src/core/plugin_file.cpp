#include "core/plugin_file.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace strata {

std::string plugin_file(const char* variable, const char* name) {
  if (const char* const named = std::getenv(variable); named != nullptr && *named != '\0') return named;
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::filesystem::path beside = program.parent_path().parent_path() / "lib" / name;
  return std::filesystem::exists(beside, none) ? beside.string() : name;
}

}  // namespace strata
