// The NUMA nodes whose memory and CPUs this process may use.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace strata {

// Of the machine, or of what HWLOC_SYNTHETIC describes (hwloc, "Synthetic topologies"). Thread-safe.
// Nodes of a cpuset that excludes them do not count, nor do nodes of slower or special memory beside the same CPUs
// (CXL, HBM, that of a GPU). A machine that cannot be read counts as one node.
class MemoryNodes {
 public:
  MemoryNodes();
  ~MemoryNodes();
  MemoryNodes(const MemoryNodes&) = delete;
  MemoryNodes& operator=(const MemoryNodes&) = delete;

  std::size_t size() const;
  // Asks the kernel to take the pages of a mapping that nobody has touched yet from all nodes in turn. Does nothing on
  // one node. Advice: where the kernel refuses (containers without CAP_SYS_NICE and with seccomp), the pages come from
  // the node of the thread that touches them first, and a debug line says so once.
  void spread(std::span<std::byte> pages) const;
  // Likewise: from the node with that number of the kernel as long as it has room, for memory that one device copies.
  void prefer(std::span<std::byte> pages, unsigned node) const;
  // Binds the calling thread, number `index` of `count` that share work, to those of its CPUs that belong to one node,
  // so that neighbours stay together and no thread is moved between nodes. Does nothing where its CPUs are all of one
  // node. Advice likewise. Requires: index < count.
  void bind_thread(std::size_t index, std::size_t count) const;

 private:
  struct Topology;
  void report_refused(int error, const std::string& what) const;

  std::unique_ptr<Topology> topology_;  // null: one node
  mutable std::atomic_flag refused_{};
};

// Read once, at the first call.
const MemoryNodes& machine_nodes();

// `cpus` core by core, in the order of the machine's topology: neighbours share caches, nodes and packages. CPUs that
// hwloc does not know come last, each as a core.
std::vector<std::vector<int>> cores_in_order(const std::vector<int>& cpus);

}  // namespace strata
