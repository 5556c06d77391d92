// Process groups of NCCL, from a plug-in: a process without a GPU loads none of CUDA's libraries.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "comm/c10d_rendezvous.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace strata::comm {

struct NcclOptions {
  int device = 0;  // CUDA's number, of this process
  std::chrono::milliseconds timeout{};
  std::string plugin;           // the CUDA plug-in: a path, or a name that the loader finds
  std::string pci_bus_id = "";  // of the device; empty: unknown
  // Of the ranks of the group. None: they are sure to come.
  std::optional<Rendezvous> rendezvous = {};
};

// Returns when all `world` ranks have called it and are connected; those that do not come are found by the rendezvous,
// because NCCL waits for them without an end. The group's collectives run on the device's current stream. Throws:
// CommError that says why the plug-in or its libraries cannot be loaded, who has not come, which ranks use the same
// GPU, or why NCCL cannot start. Never ran on a GPU yet.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank,
                                                    std::size_t world, const NcclOptions& options);

}  // namespace strata::comm
