// The device that a bench measures: the host, or a GPU behind the CUDA plug-in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cuda/backend.h"

namespace strata::bench {

// What `device` may be: "auto", "host", "cuda".
std::vector<std::string> bench_devices();

// A back-end with `budget_bytes` of device memory, or null for the host. "auto" takes the first GPU where there is one.
// Throws: DeviceError that says why "cuda" cannot be had; ConfigError for another name.
std::unique_ptr<cuda::Backend> open_bench_backend(const std::string& device, std::uint64_t budget_bytes);

// {"name", "capability", "memory_bytes_per_second", "driver", "runtime"} for results that are kept.
nlohmann::json device_json(const cuda::DeviceFacts& facts);

}  // namespace strata::bench
