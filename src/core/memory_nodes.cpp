#include "core/memory_nodes.h"

#ifndef STRATA_WITHOUT_HWLOC
#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/bytes.h"
#include "core/log.h"

namespace strata {

// [Note: interleaved memory] All nodes in turn, not one part of a region bound to each node:
// - Any thread of the CPU optimizer and any drive's I/O may touch any page, and one page is in use at a time in many
//   places. Turns give every access pattern the bandwidth of all memory controllers; with parts, the page being updated
//   lies on one node and its controller serves every thread alone.
// - A bound node that is full kills the process although the budget and the machine have room (set_mempolicy(2),
//   MPOL_BIND), and a reserved huge page that its node lacks is a SIGBUS. Turns skip a full node.
struct MemoryNodes::Topology {
  hwloc_topology_t handle = nullptr;
  hwloc_bitmap_t nodes = hwloc_bitmap_alloc();

  Topology() = default;
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() {
    hwloc_bitmap_free(nodes);
    if (handle != nullptr) hwloc_topology_destroy(handle);
  }

  bool load() {
    if (nodes == nullptr || hwloc_topology_init(&handle) != 0) return false;
    // Looking must not move this thread from CPU to CPU.
    return hwloc_topology_set_flags(handle, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) == 0 &&
           hwloc_topology_load(handle) == 0;
  }

  // hwloc sorts nodes beside the same CPUs together and the ordinary memory first.
  void choose_ordinary_nodes() {
    hwloc_obj_t before = nullptr;
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(handle, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      if (before == nullptr || hwloc_bitmap_isequal(before->cpuset, node->cpuset) == 0) {
        hwloc_bitmap_set(nodes, node->os_index);
      }
      before = node;
    }
  }
};

MemoryNodes::MemoryNodes() : topology_(std::make_unique<Topology>()) {
  if (topology_->load()) {
    topology_->choose_ordinary_nodes();
  } else {
    log::debug("hwloc cannot read this machine: host memory is not spread over NUMA nodes");
  }
  if (size() == 1) topology_.reset();
}

MemoryNodes::~MemoryNodes() = default;

std::size_t MemoryNodes::size() const {
  const int nodes = topology_ ? hwloc_bitmap_weight(topology_->nodes) : 1;
  return nodes > 1 ? static_cast<std::size_t>(nodes) : 1;
}

void MemoryNodes::spread(std::span<std::byte> pages) const {
  if (!topology_) return;
  // See [Note: interleaved memory].
  if (hwloc_set_area_membind(topology_->handle, pages.data(), pages.size(), topology_->nodes, HWLOC_MEMBIND_INTERLEAVE,
                             HWLOC_MEMBIND_BYNODESET) == 0) {
    return;
  }
  const int error = errno;
  // relaxed: it guards nothing but the repetition of a line.
  if (refused_.test_and_set(std::memory_order_relaxed)) return;
  log::debug("the kernel refuses to spread " + format_bytes(pages.size()) + " over " + std::to_string(size()) +
             " NUMA nodes (" + std::strerror(error) + "): pages come from the node that touches them first");
}

void MemoryNodes::bind_thread(std::size_t index, std::size_t count) const {
  if (!topology_) return;
  const std::size_t wanted = index * size() / count;
  std::size_t number = 0;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology_->handle, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_isset(topology_->nodes, node->os_index) == 0 || number++ != wanted) continue;
    // A node without CPUs of its own (or of this process) binds nobody.
    if (hwloc_bitmap_iszero(node->cpuset) != 0) return;
    if (hwloc_set_cpubind(topology_->handle, node->cpuset, HWLOC_CPUBIND_THREAD) != 0) {
      log::debug("the kernel refuses to bind a thread to NUMA node " + std::to_string(node->os_index) + ": " +
                 std::strerror(errno));
    }
    return;
  }
}
#else  // What is built for another processor has no hwloc: one node.

namespace strata {

struct MemoryNodes::Topology {};
MemoryNodes::MemoryNodes() = default;
MemoryNodes::~MemoryNodes() = default;
std::size_t MemoryNodes::size() const {
  return 1;
}
void MemoryNodes::spread(std::span<std::byte>) const {}
void MemoryNodes::bind_thread(std::size_t, std::size_t) const {}
#endif

// The machine does not change, so it is read once. A static object in spite of the style: allocate_host has no other
// place for it, and neither buffers nor pools are made after main.
const MemoryNodes& machine_nodes() {
  static const MemoryNodes nodes;
  return nodes;
}

}  // namespace strata
