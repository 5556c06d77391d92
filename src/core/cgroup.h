// The CPU quota that control groups put on this process.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace strata {

// CPUs granted by the tightest quota on the way from the process's group to the root, for cgroup v2 (cpu.max) and v1
// (cpu.cfs_quota_us); nothing when there is no quota. `mount` is where control groups are mounted (/sys/fs/cgroup),
// `membership` the text of /proc/self/cgroup (cgroups(7)).
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& mount, std::string_view membership);

}  // namespace strata
