// Tiers: where shards live. Every tier is linked to host memory; that link is its read() and write().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/blob_store.h"
#include "core/device.h"

namespace strata::offload {

enum class TierKind : std::uint8_t { Device, Host, Nvme };
inline constexpr std::size_t kTiers = 3;
std::string_view name_of(TierKind kind);

// A shard's place on a tier: an index that the tier gave out.
struct Home {
  std::uint32_t index = 0;
};

struct LinkStats {
  std::uint64_t bytes_read = 0;     // towards host memory
  std::uint64_t bytes_written = 0;  // from host memory
};

// Port. Ownership: a tier owns its homes until it is destroyed. create() from one thread before the run; the rest from
// any thread. Accesses to overlapping ranges are ordered by the caller through events.
class Tier {
 public:
  virtual ~Tier() = default;
  // Reserves a home of `bytes` bytes; contents undefined. Throws: OutOfBudget, IoError.
  virtual Home create(const std::string& name, std::uint64_t bytes, MemoryTag tag) = 0;
  // Address that host code may use, or null where the bytes must travel through read() and write().
  virtual std::byte* host_address(Home home) const = 0;
  // Address that device code may use, or null.
  virtual std::byte* device_address(Home home) const = 0;
  // Whether a page of this tier is worth keeping in host memory. False for the device: its homes change under device
  // code, so a host copy is fetched for one use and written back at once.
  virtual bool cacheable() const = 0;
  // Moves bytes between the home and page-aligned host memory. Requires: host_address() is null.
  virtual Event read(Home home, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) = 0;
  virtual Event write(Home home, std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;
  virtual LinkStats stats() const = 0;
};

// Homes in host memory, exact sizes out of a budget.
class HostTier final : public Tier {
 public:
  // `prepare` is called with the pages of each new home: a GPU's copies want them pinned.
  using Prepare = std::function<void(std::span<std::byte> pages, MemoryTag tag)>;
  explicit HostTier(Budget& budget, Prepare prepare = {}) : budget_(budget), prepare_(std::move(prepare)) {}
  Home create(const std::string& name, std::uint64_t bytes, MemoryTag tag) override;
  std::byte* host_address(Home home) const override { return homes_.at(home.index).data(); }
  std::byte* device_address(Home) const override { return nullptr; }
  bool cacheable() const override { return false; }
  Event read(Home, std::uint64_t, std::span<std::byte>, IoUrgency) override;
  Event write(Home, std::uint64_t, std::span<const std::byte>) override;
  LinkStats stats() const override { return {}; }

 private:
  Budget& budget_;
  const Prepare prepare_;
  std::vector<Buffer> homes_;
};

// Homes in device memory; the link is a pair of streams (device to host, host to device).
class DeviceTier final : public Tier {
 public:
  explicit DeviceTier(Device& device);
  Home create(const std::string& name, std::uint64_t bytes, MemoryTag tag) override;
  std::byte* host_address(Home) const override { return nullptr; }
  std::byte* device_address(Home home) const override { return homes_.at(home.index).data(); }
  bool cacheable() const override { return false; }
  Event read(Home home, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) override;
  Event write(Home home, std::uint64_t offset_bytes, std::span<const std::byte> source) override;
  LinkStats stats() const override;

 private:
  Device& device_;
  std::vector<Buffer> homes_;
  mutable std::mutex mutex_;           // streams take calls from one thread at a time
  std::unique_ptr<Stream> to_host_;    // guarded by mutex_
  std::unique_ptr<Stream> to_device_;  // guarded by mutex_
  LinkStats stats_;                    // guarded by mutex_
};

// Homes in a BlobStore (files on NVMe).
class BlobTier final : public Tier {
 public:
  explicit BlobTier(BlobStore& store) : store_(store) {}
  Home create(const std::string& name, std::uint64_t bytes, MemoryTag tag) override;
  std::byte* host_address(Home) const override { return nullptr; }
  std::byte* device_address(Home) const override { return nullptr; }
  bool cacheable() const override { return true; }
  Event read(Home home, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) override;
  Event write(Home home, std::uint64_t offset_bytes, std::span<const std::byte> source) override;
  LinkStats stats() const override;

 private:
  BlobStore& store_;
};

}  // namespace strata::offload
