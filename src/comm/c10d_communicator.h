// The communicator over c10d's process groups, whichever back-end they have.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/communicator.h"
#include "core/shard_optimizer.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace strata::comm {

class DeviceGroups;

// What make_c10d_communicator() wants as staging: chunks on their way in. On a device each chunk is an exchange and a
// copy that are launched, some tens of microseconds; a fast link moves 2 MiB in less, and the larger ones in a
// millisecond.
inline constexpr std::size_t kStagingBytes = std::size_t{2} << 20;
inline constexpr std::size_t kDeviceStagingBytes = std::size_t{32} << 20;

// Process groups of the same ranks, one per channel: they are used by two threads, and c10d matches calls by their
// order.
struct C10dGroups {
  c10::intrusive_ptr<c10d::Backend> queued = {};
  c10::intrusive_ptr<c10d::Backend> blocking = {};
  std::vector<std::size_t> ranks = {};  // rank in the job of each member, for messages
  std::chrono::milliseconds timeout{};
  // Of the job, to which `queued` is added where it is bound to a device; null: none but that.
  std::shared_ptr<DeviceGroups> devices = {};
};

// `staging` has at least kStagingBytes, on all ranks as many, where `math` and the collectives on streams work; nothing
// else is allocated for payloads. `math` is used on the thread of the stream and must outlive the communicator. A
// failure on one channel fails both.
std::unique_ptr<Communicator> make_c10d_communicator(C10dGroups groups, ShardMath& math, Buffer staging);

}  // namespace strata::comm
