#include "nvme/device_profile.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"

namespace strata::nvme {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr std::array kRingModes{RingMode::Plain, RingMode::Deferred, RingMode::Polled};
constexpr int kVersion = 1;

fs::path from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

// The first line of a file in sysfs without the blanks around it; empty when there is none.
std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

json to_json(const DeviceProfile& profile) {
  return {{"block_bytes", profile.block_bytes}, {"queue_depth", profile.queue_depth},
          {"ring", name_of(profile.ring)},      {"burst_bytes", profile.burst_bytes},
          {"read_rate", profile.read_rate},     {"write_rate", profile.write_rate},
          {"mixed_rate", profile.mixed_rate}};
}

RingMode ring_of(const std::string& name) {
  for (const RingMode mode : kRingModes) {
    if (name == name_of(mode)) return mode;
  }
  throw std::invalid_argument("there is no ring mode " + name);
}

double rate_of(const json& entry, const char* key) {
  const double rate = entry.at(key).get<double>();
  if (!std::isfinite(rate) || rate < 0) throw std::invalid_argument(std::string(key) + " is no rate");
  return rate;
}

// Throws: nlohmann's exceptions and std::invalid_argument for what no tuner wrote.
DeviceProfile from_json(const json& entry) {
  // Numbers below zero and fractions become something else when a library converts them silently.
  for (const char* key : {"block_bytes", "queue_depth", "burst_bytes"}) {
    if (!entry.at(key).is_number_unsigned()) throw std::invalid_argument(std::string(key) + " is no whole number");
  }
  const auto block = entry.at("block_bytes").get<std::uint64_t>();
  const auto depth = entry.at("queue_depth").get<std::uint64_t>();
  if (block < kPageBytes || block % kPageBytes != 0 || block > kMaxRequestBytes) {
    throw std::invalid_argument("block_bytes must be a multiple of 4096 up to 1 GiB");
  }
  if (depth < 1 || depth > 4096) throw std::invalid_argument("queue_depth must be 1 to 4096");
  return {.block_bytes = block,
          .queue_depth = static_cast<unsigned>(depth),
          .ring = ring_of(entry.at("ring").get<std::string>()),
          .burst_bytes = entry.at("burst_bytes").get<std::uint64_t>(),
          .read_rate = rate_of(entry, "read_rate"),
          .write_rate = rate_of(entry, "write_rate"),
          .mixed_rate = rate_of(entry, "mixed_rate")};
}

void warn_ignored(const fs::path& file, const std::string& why) {
  log::warning_once("nvme.profiles." + file.string(), "ignoring the drive profiles in " + file.string() + ": " + why +
                                                          "; `strata tune` writes them anew");
}

// The drives of the file by name; an empty object when there is no file, or none that makes sense.
json read_drives(const fs::path& file) {
  std::ifstream in(file);
  if (!in) {
    if (errno != ENOENT && errno != ENOTDIR) warn_ignored(file, std::strerror(errno));
    return json::object();
  }
  try {
    json content = json::parse(in);
    if (content.at("version") != kVersion) throw std::invalid_argument("its version is unknown");
    json& drives = content.at("drives");
    if (!drives.is_object()) throw std::invalid_argument("its drives are no object");
    return std::move(drives);
  } catch (const std::exception& error) {
    warn_ignored(file, error.what());
    return json::object();
  }
}

// Under another name first, so that a reader, or a full disk, never sees half a file.
void replace_file(const fs::path& file, const std::string& text) {
  if (file.has_parent_path()) fs::create_directories(file.parent_path());
  const fs::path fresh = file.string() + "." + std::to_string(::getpid()) + ".tmp";
  std::ofstream out(fresh);
  out << text;
  out.close();
  std::error_code error;
  if (!out) {
    error = std::error_code(errno, std::generic_category());
  } else {
    fs::rename(fresh, file, error);
  }
  if (!error) return;
  std::error_code ignored;  // the first error is the one to tell
  fs::remove(fresh, ignored);
  throw std::system_error(error);
}

}  // namespace

std::string name_of(RingMode mode) {
  switch (mode) {
    case RingMode::Plain:
      return "plain";
    case RingMode::Deferred:
      return "deferred";
    case RingMode::Polled:
      return "polled";
  }
  return "";
}

fs::path profile_file() {
  if (const fs::path file = from_environment("STRATA_DRIVE_PROFILES"); !file.empty()) return file;
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); !cache.empty()) return cache / "strata/drives.json";
  if (const fs::path home = from_environment("HOME"); !home.empty()) return home / ".cache/strata/drives.json";
  return {};
}

std::string drive_of(unsigned major, unsigned minor, const fs::path& sysfs) {
  const std::string number = std::to_string(major) + ":" + std::to_string(minor);
  std::error_code error;
  fs::path disk = fs::canonical(sysfs / "dev/block" / number, error);
  if (error) return number;
  if (fs::exists(disk / "partition", error)) disk = disk.parent_path();
  const std::string model = line_of(disk / "device/model");
  // NVMe, SCSI, virtio, device mapper, RAID: each keeps its identity in another place.
  for (const char* place : {"device/serial", "serial", "wwid", "device/wwid", "dm/uuid", "md/uuid"}) {
    const std::string identity = line_of(disk / place);
    if (!identity.empty()) return model.empty() ? identity : model + " " + identity;
  }
  const std::string disk_number = line_of(disk / "dev");
  return disk_number.empty() ? number : disk_number;
}

std::string drive_of(const fs::path& directory) {
  fs::path place = fs::absolute(directory).lexically_normal();
  struct stat info {};
  while (::stat(place.c_str(), &info) != 0) {
    if (!place.has_relative_path()) throw IoError({errno, "stat", directory.string(), 0, 0, ""});
    place = place.parent_path();
  }
  return drive_of(major(info.st_dev), minor(info.st_dev), "/sys");
}

std::optional<DeviceProfile> load_profile(const fs::path& directory) {
  const fs::path file = profile_file();
  if (file.empty()) return std::nullopt;
  const json drives = read_drives(file);
  const auto entry = drives.find(drive_of(directory));
  if (entry == drives.end()) return std::nullopt;
  try {
    return from_json(*entry);
  } catch (const std::exception& error) {
    warn_ignored(file, "drive " + entry.key() + ": " + error.what());
    return std::nullopt;
  }
}

bool save_profile(const fs::path& directory, const DeviceProfile& profile) {
  const fs::path file = profile_file();
  if (file.empty()) {
    log::warning("the drive's profile is not saved: set STRATA_DRIVE_PROFILES to a file name, or HOME");
    return false;
  }
  try {
    json drives = read_drives(file);
    drives[drive_of(directory)] = to_json(profile);
    replace_file(file, json{{"version", kVersion}, {"drives", drives}}.dump(2) + "\n");
    return true;
  } catch (const std::exception& error) {
    log::warning("the drive's profile cannot be saved in " + file.string() + ": " + error.what() +
                 "; name another file in STRATA_DRIVE_PROFILES");
    return false;
  }
}

}  // namespace strata::nvme
