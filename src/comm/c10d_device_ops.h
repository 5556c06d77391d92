// Collectives of a process group whose transfers are queued on a device: NCCL.
#pragma once

#include <cstddef>
#include <span>

namespace c10d {
class Backend;
}  // namespace c10d

namespace strata::comm {

// Connects the ranks of a group that is bound to a device, all of which must call it: it blocks until they have, and no
// abort ends that. Without it the first collective would do the same.
void device_connect(c10d::Backend& backend);

// As in C10dChannel, on memory of the device that `backend` is bound to. They return when the work is on the current
// stream. Never ran on a GPU yet.
void device_all_gather(c10d::Backend& backend, std::byte* rows, std::size_t row_bytes);
void device_exchange(c10d::Backend& backend, std::byte* rows, std::size_t row_bytes, std::span<std::byte> staging);

}  // namespace strata::comm
