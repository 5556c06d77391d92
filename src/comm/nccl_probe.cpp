#include "comm/nccl_probe.h"

#include <dlfcn.h>

#include "core/plugin_file.h"

namespace strata::comm {

std::string nccl_plugin_file() {
  return plugin_file("STRATA_NCCL_PLUGIN", "libstrata_nccl.so");
}

NcclProbe probe_nccl() {
  const std::string file = nccl_plugin_file();
  void* const plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return {.why_not = dlerror()};
  if (dlsym(plugin, "strata_make_nccl_backend") == nullptr) return {.why_not = file + " is not the NCCL plug-in"};
  NcclProbe probe{.loads = true};
  // Of the NCCL that the plug-in is linked with; 22809 is 2.28.9.
  using GetVersion = int(int*);
  int version = 0;
  if (auto* const get = reinterpret_cast<GetVersion*>(dlsym(plugin, "ncclGetVersion"));
      get != nullptr && get(&version) == 0) {
    probe.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                    std::to_string(version % 100);
  }
  return probe;
}

}  // namespace strata::comm
