// The part of the doctor that looks at drives and at io_uring.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/doctor.h"

namespace strata::engine {

// Reads a page through a real ring.
Finding examine_io_uring();

// The folder's file system and O_DIRECT, then its free space. Throws: ConfigError when it is no folder.
std::vector<Finding> examine_folder(const std::filesystem::path& folder);

// What is mounted where `path`, absolute and without links, lies: "ext4". `mountinfo` is the text of
// /proc/self/mountinfo (proc(5)). Empty where that does not say.
std::string file_system_of(const std::filesystem::path& path, std::string_view mountinfo);
// What the kind of file system and its use mean for a run.
Finding examine_file_system(const std::string& folder, const std::string& type, bool direct, bool tuned);
Finding examine_free_space(const std::string& folder, std::uint64_t bytes);

}  // namespace strata::engine
