#include "engine/cuda_plugin.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace strata::engine {
namespace {

constexpr const char* kFile = "libstrata_cuda.so";

const char* named_file() {
  const char* const named = std::getenv("STRATA_CUDA_PLUGIN");
  return named != nullptr && *named != '\0' ? named : nullptr;
}

struct Library {
  void* handle = nullptr;
  std::string why_not;  // where it is null
};

const Library& library() {
  static const Library opened = [] {
    // Streams that share a connection wait for each other without a reason: the engine alone has nine, and eight is the
    // default. Read with the first call of CUDA.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    void* const handle = dlopen(cuda_plugin_file().c_str(), RTLD_NOW | RTLD_LOCAL);
    return handle != nullptr ? Library{handle, ""} : Library{nullptr, dlerror()};
  }();
  return opened;
}

struct Plugin {
  strata_cuda_device_count_t* device_count = nullptr;
  strata_cuda_open_t* open = nullptr;
  strata_cuda_torch_place_t* torch_place = nullptr;
  bool has_driver = false;
  std::string why_not;  // where the functions are null
};

Plugin load() {
  Plugin plugin;
  // The plug-in brings torch's kernels, which take a second and hundreds of megabytes: not where nothing can run them.
  if (named_file() == nullptr && dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    plugin.why_not = "there is no NVIDIA driver here (libcuda.so.1 is not found)";
    return plugin;
  }
  plugin.has_driver = true;
  if (library().handle == nullptr) {
    plugin.why_not = "the CUDA plug-in cannot be loaded: " + library().why_not;
    return plugin;
  }
  plugin.device_count = reinterpret_cast<strata_cuda_device_count_t*>(cuda_plugin_symbol("strata_cuda_device_count"));
  plugin.open = reinterpret_cast<strata_cuda_open_t*>(cuda_plugin_symbol("strata_cuda_open"));
  plugin.torch_place = reinterpret_cast<strata_cuda_torch_place_t*>(cuda_plugin_symbol("strata_cuda_torch_place"));
  if (plugin.device_count == nullptr || plugin.open == nullptr || plugin.torch_place == nullptr) {
    plugin = {.has_driver = true, .why_not = cuda_plugin_file() + " is not the CUDA plug-in"};
  }
  return plugin;
}

const Plugin& loaded() {
  static const Plugin plugin = load();
  return plugin;
}

using Text = std::array<char, 1024>;

}  // namespace

std::string cuda_plugin_file() {
  if (const char* const named = named_file()) return named;
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::filesystem::path beside = program.parent_path().parent_path() / "lib" / kFile;
  return std::filesystem::exists(beside, none) ? beside.string() : kFile;
}

CudaDevices cuda_devices() {
  const Plugin& plugin = loaded();
  CudaDevices found{.has_driver = plugin.has_driver, .why_no_more = plugin.why_not};
  if (plugin.device_count == nullptr) return found;
  Text why{};
  found.count = plugin.device_count(why.data(), why.size());
  found.why_no_more = why.data();
  found.torch = plugin.torch_place();
  return found;
}

CudaDevices require_cuda_devices() {
  CudaDevices found = cuda_devices();
  if (found.count == 0) {
    throw DeviceError("no GPU can be used: " + found.why_no_more + ". strata.device: host computes on the processor");
  }
  if (found.torch == cuda::TorchPlace::Nowhere) {
    throw DeviceError(
        "the CUDA plug-in was built without torch, so nothing can be computed on the GPU; build it with "
        "torch, or set strata.device: host");
  }
  return found;
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
  return library().handle == nullptr ? nullptr : dlsym(library().handle, name);
}

}  // namespace strata::engine
