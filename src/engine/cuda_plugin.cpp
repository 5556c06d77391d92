#include "engine/cuda_plugin.h"

#include <dlfcn.h>

#include <array>

#include "core/error.h"
#include "core/plugin_file.h"

namespace strata::engine {
namespace {

struct Plugin {
  void* library = nullptr;
  strata_cuda_device_count_t* device_count = nullptr;
  strata_cuda_open_t* open = nullptr;
  std::string why_not;  // where these are null
};

Plugin load() {
  const std::string file = plugin_file("STRATA_CUDA_PLUGIN", "libstrata_cuda.so");
  Plugin plugin;
  void* const library = plugin.library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    plugin.why_not = "the CUDA plug-in cannot be loaded: " + std::string(dlerror());
    return plugin;
  }
  plugin.device_count = reinterpret_cast<strata_cuda_device_count_t*>(dlsym(library, "strata_cuda_device_count"));
  plugin.open = reinterpret_cast<strata_cuda_open_t*>(dlsym(library, "strata_cuda_open"));
  if (plugin.device_count == nullptr || plugin.open == nullptr) plugin = {.why_not = file + " is not the CUDA plug-in"};
  return plugin;
}

const Plugin& loaded() {
  static const Plugin plugin = load();
  return plugin;
}

using Text = std::array<char, 1024>;

}  // namespace

CudaDevices cuda_devices() {
  const Plugin& plugin = loaded();
  if (plugin.device_count == nullptr) return {.why_none = plugin.why_not};
  Text why{};
  const int count = plugin.device_count(why.data(), why.size());
  return {.count = count, .why_none = count > 0 ? std::string() : why.data()};
}

std::unique_ptr<cuda::Backend> open_cuda(const cuda::BackendOptions& options) {
  const Plugin& plugin = loaded();
  if (plugin.open == nullptr) throw DeviceError(plugin.why_not);
  Text why{};
  std::unique_ptr<cuda::Backend> backend(plugin.open(&options, why.data(), why.size()));
  if (!backend) throw DeviceError("CUDA device " + std::to_string(options.device) + " cannot be used: " + why.data());
  return backend;
}

void* cuda_plugin_symbol(const char* name) {
  return loaded().library == nullptr ? nullptr : dlsym(loaded().library, name);
}

}  // namespace strata::engine
