#include "core/memory_nodes.h"

#ifndef STRATA_WITHOUT_HWLOC
#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/log.h"

namespace strata {

namespace {

// As hwloc reads it: this machine, or what HWLOC_SYNTHETIC describes.
class MachineTopology {
 public:
  MachineTopology() {
    if (hwloc_topology_init(&handle_) != 0) return;
    // Looking must not move this thread from CPU to CPU.
    loaded_ = hwloc_topology_set_flags(handle_, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) == 0 &&
              hwloc_topology_load(handle_) == 0;
  }
  ~MachineTopology() {
    if (handle_ != nullptr) hwloc_topology_destroy(handle_);
  }
  MachineTopology(const MachineTopology&) = delete;
  MachineTopology& operator=(const MachineTopology&) = delete;

  bool loaded() const { return loaded_; }
  hwloc_topology_t handle() const { return handle_; }

 private:
  hwloc_topology_t handle_ = nullptr;
  bool loaded_ = false;
};

struct Bitmap {
  hwloc_bitmap_t bits = hwloc_bitmap_alloc();

  Bitmap() {
    if (bits == nullptr) throw std::bad_alloc();
  }
  Bitmap(Bitmap&& other) noexcept : bits(std::exchange(other.bits, nullptr)) {}
  Bitmap& operator=(Bitmap&&) = delete;
  ~Bitmap() { hwloc_bitmap_free(bits); }  // of null: nothing
};

}  // namespace

// [Note: interleaved memory] All nodes in turn, not one part of a region bound to each node:
// - Any thread of the CPU optimizer and any drive's I/O may touch any page, and one page is in use at a time in many
//   places. Turns give every access pattern the bandwidth of all memory controllers; with parts, the page being updated
//   lies on one node and its controller serves every thread alone.
// - A bound node that is full kills the process although the budget and the machine have room (set_mempolicy(2),
//   MPOL_BIND), and a reserved huge page that its node lacks is a SIGBUS. Turns skip a full node.
struct MemoryNodes::Topology {
  MachineTopology machine;
  Bitmap nodes;

  // hwloc sorts nodes beside the same CPUs together and the ordinary memory first.
  void choose_ordinary_nodes() {
    hwloc_obj_t before = nullptr;
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(machine.handle(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      if (before == nullptr || hwloc_bitmap_isequal(before->cpuset, node->cpuset) == 0) {
        hwloc_bitmap_set(nodes.bits, node->os_index);
      }
      before = node;
    }
  }
};

MemoryNodes::MemoryNodes() : topology_(std::make_unique<Topology>()) {
  if (topology_->machine.loaded()) {
    topology_->choose_ordinary_nodes();
  } else {
    log::debug("hwloc cannot read this machine: host memory is not spread over NUMA nodes");
  }
  if (size() == 1) topology_.reset();
}

MemoryNodes::~MemoryNodes() = default;

std::size_t MemoryNodes::size() const {
  const int nodes = topology_ ? hwloc_bitmap_weight(topology_->nodes.bits) : 1;
  return nodes > 1 ? static_cast<std::size_t>(nodes) : 1;
}

void MemoryNodes::spread(std::span<std::byte> pages) const {
  if (!topology_) return;
  // See [Note: interleaved memory].
  if (hwloc_set_area_membind(topology_->machine.handle(), pages.data(), pages.size(), topology_->nodes.bits,
                             HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET) == 0) {
    return;
  }
  const int error = errno;
  report_refused(error, "spread " + format_bytes(pages.size()) + " over " + std::to_string(size()) + " NUMA nodes");
}

void MemoryNodes::prefer(std::span<std::byte> pages, unsigned node) const {
  if (!topology_ || hwloc_bitmap_isset(topology_->nodes.bits, node) == 0) return;
  const Bitmap one;
  hwloc_bitmap_only(one.bits, node);
  // Without HWLOC_MEMBIND_STRICT this is MPOL_PREFERRED, which takes another node's page where this one is full.
  if (hwloc_set_area_membind(topology_->machine.handle(), pages.data(), pages.size(), one.bits, HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_BYNODESET) == 0) {
    return;
  }
  const int error = errno;
  report_refused(error, "take " + format_bytes(pages.size()) + " from NUMA node " + std::to_string(node));
}

// Says once what was refused.
void MemoryNodes::report_refused(int error, const std::string& what) const {
  // relaxed: it guards nothing but the repetition of a line.
  if (refused_.test_and_set(std::memory_order_relaxed)) return;
  log::debug("the kernel refuses to " + what + " (" + std::strerror(error) +
             "): pages come from the node that touches them first");
}

void MemoryNodes::bind_thread(std::size_t index, std::size_t count) const {
  if (!topology_) return;
  // A rank's threads stay within the rank's CPUs.
  const Bitmap own;
  if (hwloc_get_cpubind(topology_->machine.handle(), own.bits, HWLOC_CPUBIND_THREAD) != 0) hwloc_bitmap_fill(own.bits);
  std::vector<Bitmap> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology_->machine.handle(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_isset(topology_->nodes.bits, node->os_index) == 0) continue;
    Bitmap cpus;
    hwloc_bitmap_and(cpus.bits, node->cpuset, own.bits);
    if (hwloc_bitmap_iszero(cpus.bits) == 0) nodes.push_back(std::move(cpus));
  }
  if (nodes.size() < 2) return;
  const Bitmap& wanted = nodes[index * nodes.size() / count];
  if (hwloc_set_cpubind(topology_->machine.handle(), wanted.bits, HWLOC_CPUBIND_THREAD) != 0) {
    log::debug(std::string("the kernel refuses to bind a thread to a NUMA node: ") + std::strerror(errno));
  }
}

std::vector<std::vector<int>> cores_in_order(const std::vector<int>& cpus) {
  std::set<int> left(cpus.begin(), cpus.end());
  std::vector<std::vector<int>> cores;
  // hwloc calls PUs what the kernel calls CPUs; of one type it lists them in the order of the tree. Without cores in
  // the topology each is one.
  hwloc_obj_t core_before = nullptr;
  MachineTopology topology;
  for (hwloc_obj_t pu = nullptr;
       topology.loaded() && (pu = hwloc_get_next_obj_by_type(topology.handle(), HWLOC_OBJ_PU, pu)) != nullptr;) {
    const auto cpu = static_cast<int>(pu->os_index);
    if (left.erase(cpu) == 0) continue;
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.handle(), HWLOC_OBJ_CORE, pu);
    if (core == nullptr || core != core_before) cores.emplace_back();
    cores.back().push_back(cpu);
    core_before = core;
  }
  for (const int cpu : left) cores.push_back({cpu});
  return cores;
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
void MemoryNodes::prefer(std::span<std::byte>, unsigned) const {}
void MemoryNodes::bind_thread(std::size_t, std::size_t) const {}

std::vector<std::vector<int>> cores_in_order(const std::vector<int>& cpus) {
  std::vector<std::vector<int>> cores;
  for (const int cpu : cpus) cores.push_back({cpu});
  return cores;
}
#endif

// The machine does not change, so it is read once. A static object in spite of the style: allocate_host has no other
// place for it, and neither buffers nor pools are made after main.
const MemoryNodes& machine_nodes() {
  static const MemoryNodes nodes;
  return nodes;
}

}  // namespace strata
