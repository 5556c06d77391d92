#include "comm/nccl_backend.h"

#include <dlfcn.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>

#include "comm/c10d_text.h"
#include "comm/nccl_plugin.h"
#include "core/error.h"

namespace strata::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank,
                                                    std::size_t world, const NcclOptions& options) {
  // Never unloaded: CUDA's libraries do not survive that.
  void* const plugin = dlopen(options.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) throw CommError("NCCL is not available: " + std::string(dlerror()));
  const auto make = reinterpret_cast<decltype(&strata_make_nccl_backend)>(dlsym(plugin, "strata_make_nccl_backend"));
  if (make == nullptr) throw CommError(options.plugin + " is not the NCCL plug-in: " + dlerror());
  std::array<char, 1024> error{};
  c10d::Backend* const backend = make(store.get(), static_cast<int>(rank), static_cast<int>(world), options.device,
                                      options.timeout.count(), error.data(), error.size());
  if (backend == nullptr) throw CommError("NCCL cannot start: " + brief(error.data()));
  return c10::intrusive_ptr<c10d::Backend>::reclaim(backend);
}

}  // namespace strata::comm
