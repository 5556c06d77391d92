#include "core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace strata {
namespace {

namespace fs = std::filesystem;

void keep_smaller(std::optional<double>& quota, double quota_us, double period_us) {
  if (quota_us <= 0 || period_us <= 0) return;  // v1 says -1 for "no quota"
  const double cpus = quota_us / period_us;
  quota = quota ? std::min(*quota, cpus) : cpus;
}

// What one group's folder says. Absent files are no quota: the root group has none, nor do groups without the
// controller.
void read_group(const fs::path& folder, std::optional<double>& quota) {
  double quota_us = 0;
  double period_us = 0;
  // cpu.max is "max 100000" or "150000 100000"; "max" does not parse as a number.
  if (std::ifstream v2(folder / "cpu.max"); v2 >> quota_us >> period_us) keep_smaller(quota, quota_us, period_us);
  std::ifstream v1_quota(folder / "cpu.cfs_quota_us");
  std::ifstream v1_period(folder / "cpu.cfs_period_us");
  if (v1_quota >> quota_us && v1_period >> period_us) keep_smaller(quota, quota_us, period_us);
}

bool lists_cpu(std::string_view controllers) {
  std::istringstream stream{std::string(controllers)};
  for (std::string name; std::getline(stream, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

std::optional<double> cgroup_cpu_quota(const fs::path& mount, std::string_view membership) {
  std::optional<double> quota;
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {
    // "hierarchy:controllers:path"; v2 has hierarchy 0 and no controllers.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !lists_cpu(controllers)) continue;
    const std::vector<fs::path> roots = controllers.empty() ? std::vector<fs::path>{mount, mount / "unified"}
                                                            : std::vector<fs::path>{mount / controllers, mount / "cpu"};
    // Ancestors limit too. Inside a container the path may name folders of the host that are not mounted here; then
    // only the mount itself, which is this container's own group, answers.
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      for (const fs::path& root : roots) read_group(root / group, quota);
      if (group.empty()) break;
    }
  }
  return quota;
}

}  // namespace strata
