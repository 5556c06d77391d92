// Question: how near is the CUDA AdamW step to the rate at which the GPU's memory moves the same bytes?
#pragma once

#include <nlohmann/json.hpp>

#include "bench/bench_adam.h"

namespace strata::bench {

// As run_adam_bench, on the first GPU: for each entry of options.states the optimizer of the CUDA plug-in (bf16
// gradient in, bf16 parameter out) updates a shard in device memory several times, and right after it a copy from
// device memory to device memory moves as many bytes, or as many as the shard has. options.threads is not used.
// {"device": "cuda", "gpu": as bench_device.h, "numel", "rounds", "bar": least over_copy, "states": {name:
//  {"bytes_per_parameter": read and written, "params_per_second", "bytes_per_second", "copy_bytes_per_second": read and
//   written, "over_copy", "over_memory": of the rate that the driver names, null where it names none}}}, rates as
//  {"median", "mad", "worst"}.
// Throws: ConfigError; DeviceError where there is no GPU; OutOfBudget.
nlohmann::json run_cuda_adam_bench(const AdamBenchOptions& options);
std::string format_cuda_adam_bench(const nlohmann::json& result);

}  // namespace strata::bench
