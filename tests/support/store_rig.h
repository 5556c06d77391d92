// StoreRig: a ShardStore over a device, host memory and a blob store in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/host_device.h"
#include "offload/shard_store.h"
#include "support/faulty_blob_store.h"
#include "support/memory_blob_store.h"

namespace strata::test {

struct StoreRigOptions {
  std::size_t slots = 8;
  std::size_t slot_bytes = kPageBytes;
  std::uint64_t look_ahead_bytes = 0;
  Executor* completions = nullptr;  // where NVMe requests complete; null: inside the call
  HostDeviceOptions device = {};
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;  // limit of the host's and of the device's budget
};

// Members in the order in which they depend on each other.
struct StoreRig {
  explicit StoreRig(const StoreRigOptions& options = {},
                    std::unique_ptr<offload::EvictionPolicy> policy = std::make_unique<offload::NextUsePolicy>())
      : host("host memory", options.memory_bytes),
        device(options.memory_bytes, options.device),
        memory(options.completions != nullptr ? std::make_unique<MemoryBlobStore>(*options.completions)
                                              : std::make_unique<MemoryBlobStore>()),
        blobs(*memory),
        host_tier(host),
        device_tier(device),
        nvme_tier(blobs),
        slots(allocate_host(host, options.slots * options.slot_bytes, MemoryTag::Staging), options.slot_bytes),
        store({&device_tier, &host_tier, &nvme_tier}, slots, std::move(policy),
              {.look_ahead_bytes = options.look_ahead_bytes}) {}

  offload::ShardId add(std::uint64_t numel, offload::TierKind home = offload::TierKind::Nvme, DType dtype = DType::F32,
                       offload::ShardKind kind = offload::ShardKind::OptimState) {
    return store.add({"shard", kind, dtype, numel, home});
  }
  std::uint64_t bytes_read() const { return nvme_tier.stats().bytes_read; }
  std::uint64_t bytes_written() const { return nvme_tier.stats().bytes_written; }

  Budget host;
  HostDevice device;
  std::unique_ptr<MemoryBlobStore> memory;
  FaultyBlobStore blobs;
  offload::HostTier host_tier;
  offload::DeviceTier device_tier;
  offload::BlobTier nvme_tier;
  SlotPool slots;
  offload::ShardStore store;
};

// A page's bytes as a function of a stamp, so that every byte of a page tells which version it belongs to.
inline std::byte stamped_byte(std::uint64_t stamp, std::size_t index) {
  const std::uint64_t mixed = (stamp * 0xd1342543de82ef95U + index / 8) * 0x9e3779b97f4a7c15U;
  return static_cast<std::byte>(mixed >> (8 * (index % 8)));
}
inline void stamp(std::span<std::byte> page, std::uint64_t value) {
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = stamped_byte(value, i);
}
inline bool has_stamp(std::span<const std::byte> page, std::uint64_t value) {
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (page[i] != stamped_byte(value, i)) return false;
  }
  return true;
}

// Writes and reads whole shards through pins.
inline void write_shard(offload::ShardStore& store, offload::ShardId shard, const std::vector<std::byte>& bytes) {
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) {
    const std::size_t element = bytes_of(store.spec(shard).dtype);
    const offload::Pin pin = store.acquire({shard, p}, offload::Access::Write);
    const std::span<std::byte> page = pin.wait();
    std::memcpy(page.data(), bytes.data() + store.range({shard, p}).first * element, page.size());
  }
}
inline std::vector<std::byte> read_shard(offload::ShardStore& store, offload::ShardId shard) {
  std::vector<std::byte> bytes;
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) {
    const offload::Pin pin = store.acquire({shard, p}, offload::Access::Read);
    const std::span<std::byte> page = pin.wait();
    bytes.insert(bytes.end(), page.begin(), page.end());
  }
  return bytes;
}

}  // namespace strata::test
