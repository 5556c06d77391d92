#include "cuda/device_shares.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>

#include "core/log.h"

namespace strata::cuda {

double fraction_of(std::uint64_t bytes, std::uint64_t total) {
  const double fraction = static_cast<double>(bytes) / static_cast<double>(total);
  return std::min(std::nextafter(fraction, std::numeric_limits<double>::infinity()), 1.0);
}

DeviceShares::Share& DeviceShares::Share::operator=(Share&& other) noexcept {
  if (this == &other) return *this;
  take_back();
  all_ = std::exchange(other.all_, nullptr);
  device_ = other.device_;
  bytes_ = other.bytes_;
  return *this;
}

void DeviceShares::Share::take_back() noexcept {
  DeviceShares* const all = std::exchange(all_, nullptr);
  if (all == nullptr) return;
  try {
    all->take_back(device_, bytes_);
  } catch (const std::exception& error) {
    log::error("a share of " + std::to_string(bytes_) + " bytes of device " + std::to_string(device_) +
               " ended, but its allocator keeps the old limit: " + error.what());
  }
}

DeviceShares::Share DeviceShares::add(int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = sums_.find(device);
  Sum sum = found == sums_.end() ? Sum{} : found->second;
  sum.bytes += bytes;
  ++sum.shares;
  apply_(device, sum.bytes);
  sums_[device] = sum;
  return Share(*this, device, bytes);
}

void DeviceShares::take_back(int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Sum& sum = sums_.at(device);
  sum.bytes -= bytes;
  if (--sum.shares == 0) {
    sums_.erase(device);
    apply_(device, std::nullopt);
  } else {
    apply_(device, sum.bytes);
  }
}

}  // namespace strata::cuda
