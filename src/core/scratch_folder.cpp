#include "core/scratch_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace strata {

ScratchFolder::ScratchFolder(const std::filesystem::path& parent, const std::string& stem) {
  std::string pattern = (parent / (stem + "-XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw IoError({errno, "mkdtemp", parent.string(), 0, 0, "name a directory that this user may write in"});
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;  // nothing to be done about it at the end
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace strata
