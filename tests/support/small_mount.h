// SmallMount: a small file system of a given type, where the test may mount one.
#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "support/temp_dir.h"

namespace strata::test {

// Unmounts at the end. Check mounted() and skip with reason() where it is false.
class SmallMount {
 public:
  // A file system without a device: "tmpfs" or "ramfs".
  static SmallMount memory(const std::string& type, const std::string& options) {
    SmallMount mount;
    if (::mount("none", mount.path().c_str(), type.c_str(), 0, options.c_str()) == 0) {
      mount.mounted_ = true;
    } else {
      mount.reason_ = "cannot mount " + type + " here: " + std::strerror(errno);
    }
    return mount;
  }
  // An image file of `megabytes`, formatted as "ext2" or "ext4", behind a loop device with sectors of `sector_bytes`.
  static SmallMount image(const std::string& type, int megabytes, int sector_bytes = 512) {
    SmallMount mount;
    const std::string image = (mount.directory_->path() / "image").string();
    // The device goes with the mount: detached at once, it stays until nobody uses it.
    const std::string command = "truncate -s " + std::to_string(megabytes) + "M " + image + " && mkfs." + type +
                                " -q -F -b 4096 " + image + " && device=$(losetup -f --show -b " +
                                std::to_string(sector_bytes) + " " + image + ") && { mount $device " +
                                mount.path().string() + "; result=$?; losetup -d $device; exit $result; }";
    mount.mounted_ = std::system((command + " >/dev/null 2>&1").c_str()) == 0;
    if (!mount.mounted_) mount.reason_ = "cannot make and mount a loop " + type + " file system here";
    return mount;
  }
  SmallMount(SmallMount&& other) noexcept
      : directory_(std::move(other.directory_)), mounted_(other.mounted_), reason_(std::move(other.reason_)) {
    other.mounted_ = false;
  }
  ~SmallMount() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  SmallMount(const SmallMount&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& reason() const { return reason_; }
  std::filesystem::path path() const { return directory_->path() / "mount"; }

 private:
  SmallMount() { std::filesystem::create_directory(path()); }

  std::unique_ptr<TempDir> directory_ = std::make_unique<TempDir>();
  bool mounted_ = false;
  std::string reason_;
};

}  // namespace strata::test
