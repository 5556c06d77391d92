// Question: how near do copies through the Device port come to what the link between host and device can do?
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata::bench {

struct LinkBenchOptions {
  std::string device = "auto";  // "host", "cuda"; "auto": CUDA where there is a GPU
  std::vector<std::uint64_t> sizes = {64 << 10, 1 << 20, 16 << 20, 128 << 20};  // of one copy
  std::uint64_t bytes = 256 << 20;  // each way and measurement: a small copy is repeated
  std::size_t rounds = 7;
};

// Copies to the device, from it, and both at once, on one stream each way, between pinned host memory and device
// memory; and the same bytes between the same places without the port: on CUDA by a plain loop of cudaMemcpyAsync, on
// the host by memcpy with a thread each way. In every round each size and direction is measured on both sides right
// after each other, the one that begins changing from round to round; round 0 warms up and does not count.
// {"device": "host" or "cuda", "gpu": null or what bench_device.h says, "rounds", "bytes", "bar": least over_bare,
//  "rows": [{"bytes", "direction": "to device", "from device", "both", "bytes_per_second", "bare_bytes_per_second",
//    "over_bare"}]}, the last three {"median", "mad", "worst"}; "both" counts the bytes of both ways.
// Throws: ConfigError; DeviceError where a GPU is asked for and there is none; OutOfBudget.
nlohmann::json run_link_bench(const LinkBenchOptions& options);
std::string format_link_bench(const nlohmann::json& result);

}  // namespace strata::bench
