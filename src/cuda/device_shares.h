// What several users of one device that share an allocator have asked of it: their sum is its limit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace strata::cuda {

// What part of `total` a limit of `bytes` is, so that the product is not below `bytes` again; at most 1.
double fraction_of(std::uint64_t bytes, std::uint64_t total);

// Thread-safe. Outlives its shares.
class DeviceShares {
 public:
  // Called with each new sum of a device, none when no share is left; one call at a time, in the order of the changes.
  using Apply = std::function<void(int device, std::optional<std::uint64_t> sum)>;
  explicit DeviceShares(Apply apply) : apply_(std::move(apply)) {}
  DeviceShares(const DeviceShares&) = delete;
  DeviceShares& operator=(const DeviceShares&) = delete;

  // One user's part of a device, taken back when it is destroyed.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { take_back(); }

   private:
    friend class DeviceShares;
    Share(DeviceShares& all, int device, std::uint64_t bytes) : all_(&all), device_(device), bytes_(bytes) {}
    void take_back() noexcept;

    DeviceShares* all_ = nullptr;  // null: of nothing
    int device_ = 0;
    std::uint64_t bytes_ = 0;
  };
  // Throws: what `apply` does; nothing is added then.
  [[nodiscard]] Share add(int device, std::uint64_t bytes);

 private:
  struct Sum {
    std::uint64_t bytes = 0;
    std::size_t shares = 0;
  };
  void take_back(int device, std::uint64_t bytes);

  const Apply apply_;
  std::mutex mutex_;
  std::map<int, Sum> sums_;  // guarded by mutex_; of devices with shares
};

}  // namespace strata::cuda
