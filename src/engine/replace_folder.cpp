#include "engine/replace_folder.h"

#include <system_error>

#include "core/log.h"
#include "hf/file_handle.h"

namespace strata::engine {

namespace fs = std::filesystem;

void replace_folder(const fs::path& fresh, const fs::path& place) {
  const fs::path parent = place.has_parent_path() ? place.parent_path() : fs::path(".");
  const fs::path old = parent / (".old-" + place.filename().string());
  fs::remove_all(old);  // of a process that was killed here
  if (fs::exists(place)) fs::rename(place, old);
  try {
    fs::rename(fresh, place);
  } catch (...) {
    std::error_code ignored;
    fs::rename(old, place, ignored);
    throw;
  }
  hf::sync_folder(parent);
  std::error_code error;
  fs::remove_all(old, error);
  if (error) log::warning("could not delete " + old.string() + ": " + error.message());
}

}  // namespace strata::engine
