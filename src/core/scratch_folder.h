// ScratchFolder: a folder of this process's own, removed at the end with what is in it.
#pragma once

#include <filesystem>
#include <string>

namespace strata {

class ScratchFolder {
 public:
  // `parent`/`stem`-XXXXXX, with a name that nobody has. Throws: IoError.
  explicit ScratchFolder(const std::filesystem::path& parent, const std::string& stem = "strata");
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace strata
