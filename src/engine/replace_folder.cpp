#include "engine/replace_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"
#include "core/log.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;

void fsync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError({errno, "open", folder.string(), 0, 0, {}});
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failed != 0) throw IoError({failed, "fsync", folder.string(), 0, 0, {}});
}

}  // namespace

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
  fsync_folder(parent);
  std::error_code error;
  fs::remove_all(old, error);
  if (error) log::warning("could not delete " + old.string() + ": " + error.message());
}

}  // namespace strata::engine
