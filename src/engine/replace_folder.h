// A finished folder takes the place of another.
#pragma once

#include <filesystem>

namespace strata::engine {

// Renames `fresh` to `place`, on the same file system, and fsyncs the folder that holds them. What was at `place` is
// moved aside first (.old-NAME beside it) and deleted last, so that at no moment neither of the two exists whole.
// Throws: std::filesystem::filesystem_error, IoError; `fresh` or what was at `place` is there then.
void replace_folder(const std::filesystem::path& fresh, const std::filesystem::path& place);

}  // namespace strata::engine
