// DeviceSlots: device buffers for what comes and goes (gathered parameters, flat gradients), in stream order.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/device.h"

namespace strata::zero {

// `count` buffers of `bytes` bytes each.
struct SlotClass {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
};

// The classes that let every run of `window` consecutive visits hold the groups it names at once. Close sizes that are
// never needed together share a class where that takes fewer bytes: no other cut of the sizes into classes takes less.
// `group_bytes[g]` is the size of group g; `visits[v]` lists groups.
std::vector<SlotClass> plan_slot_classes(std::span<const std::uint64_t> group_bytes,
                                         std::span<const std::vector<std::size_t>> visits, std::size_t window);
std::uint64_t total_bytes(std::span<const SlotClass> classes);

// Everything is allocated at construction, so that nothing fragments and nothing can be refused later.
// One thread. acquire() never blocks: it hands out the slot released first, with the event after which streams may
// write it.
class DeviceSlots {
 public:
  struct Lease {
    std::byte* data = nullptr;
    Event free;  // a stream waits for this before it writes to data
    std::size_t slot_class = 0;
  };

  // Throws: OutOfBudget.
  DeviceSlots(Device& device, MemoryTag tag, std::span<const SlotClass> classes);

  // Throws: ContractViolation when the plan did not provide for this many buffers of this size at once.
  Lease acquire(std::uint64_t bytes);
  // `last_use` completes when no stream touches the buffer any more.
  void release(const Lease& lease, Event last_use);

 private:
  struct Free {
    std::byte* data = nullptr;
    Event free;
  };
  struct Class {
    std::uint64_t bytes = 0;
    std::deque<Free> free;  // the one released first in front
  };
  std::vector<Buffer> buffers_;
  std::vector<Class> classes_;  // ascending in bytes
};

}  // namespace strata::zero
