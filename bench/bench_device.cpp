#include "bench/bench_device.h"

#include "core/error.h"
#include "engine/cuda_plugin.h"

namespace strata::bench {

std::vector<std::string> bench_devices() {
  return {"auto", "host", "cuda"};
}

std::unique_ptr<cuda::Backend> open_bench_backend(const std::string& device, std::uint64_t budget_bytes) {
  if (device == "host") return nullptr;
  if (device != "auto" && device != "cuda") throw ConfigError("a device is auto, host or cuda, not \"" + device + "\"");
  const engine::CudaDevices devices = engine::cuda_devices();
  if (devices.count == 0) {
    if (device == "auto") return nullptr;
    throw DeviceError("no CUDA device: " + devices.why_no_more + "; `strata doctor` says what is missing");
  }
  cuda::BackendOptions options;
  options.budget_bytes = budget_bytes;
  return engine::open_cuda(options);
}

nlohmann::json device_json(const cuda::DeviceFacts& facts) {
  return {{"name", facts.name},
          {"capability", std::to_string(facts.major) + "." + std::to_string(facts.minor)},
          {"memory_bytes_per_second", facts.memory_bytes_per_second},
          {"driver", facts.driver_version},
          {"runtime", facts.runtime_version}};
}

}  // namespace strata::bench
