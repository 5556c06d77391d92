#include "comm/nccl_backend.h"

#include <dlfcn.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <utility>
#include <vector>

#include "comm/c10d_device_ops.h"
#include "comm/c10d_text.h"
#include "comm/nccl_plugin.h"
#include "core/error.h"
#include "core/machine_id.h"

namespace strata::comm {
namespace {

using Backend = c10::intrusive_ptr<c10d::Backend>;

Backend load_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank, std::size_t world,
                     const NcclOptions& options) {
  // Never unloaded: CUDA's libraries do not survive that.
  void* const plugin = dlopen(options.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) throw CommError("NCCL is not available: " + std::string(dlerror()));
  const auto make = reinterpret_cast<decltype(&strata_make_nccl_backend)>(dlsym(plugin, "strata_make_nccl_backend"));
  if (make == nullptr) throw CommError(options.plugin + " is not the NCCL plug-in: " + dlerror());
  std::array<char, 1024> error{};
  c10d::Backend* const backend = make(store.get(), static_cast<int>(rank), static_cast<int>(world), options.device,
                                      options.timeout.count(), error.data(), error.size());
  if (backend == nullptr) throw CommError("NCCL cannot start: " + brief(error.data()));
  return Backend::reclaim(backend);
}

// NCCL refuses two ranks on one GPU in words that name neither.
void require_own_gpus(const std::vector<std::string>& gpus, const std::vector<std::size_t>& ranks) {
  for (std::size_t b = 1; b < gpus.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (gpus[a].empty() || gpus[a] != gpus[b]) continue;
      throw CommError("ranks " + std::to_string(ranks[a]) + " and " + std::to_string(ranks[b]) + " both use GPU " +
                      gpus[a].substr(gpus[a].find(' ') + 1) +
                      "; give each rank its own: no more ranks on a machine than it has GPUs, and where "
                      "CUDA_VISIBLE_DEVICES is set, all of them in it or a different one for each rank");
    }
  }
}

}  // namespace

Backend make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank, std::size_t world,
                          const NcclOptions& options) {
  Backend backend = load_backend(store, rank, world, options);
  if (options.rendezvous) {
    const std::string gpu = options.pci_bus_id.empty() ? "" : machine_id() + " " + options.pci_bus_id;
    require_own_gpus(meet(*store, *options.rendezvous, gpu), options.rendezvous->ranks);
  }
  try {
    device_connect(*backend);
  } catch (const std::exception& e) {
    throw CommError("NCCL cannot connect the GPUs: " + brief(e.what()));
  }
  return backend;
}

}  // namespace strata::comm
