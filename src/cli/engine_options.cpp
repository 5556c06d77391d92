#include "cli/engine_options.h"

#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/cuda_plugin.h"
#include "engine/from_run_config.h"

namespace strata::cli {

void add_engine_options(CLI::App& app, EngineOptions& options) {
  app.add_option("--model", options.model, "Hugging Face folder with config.json and safetensors")->required();
  app.add_option("--max-tokens", options.max_tokens, "longest sequence, prompt included")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", options.batch_size, "sequences at once")->check(CLI::PositiveNumber);
  app.add_flag("--fp32", options.fp32, "weights in fp32 instead of bf16");
  app.add_option("--compute", options.compute, "type of matrix products on the host: auto, bf16, fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  app.add_option("--device", options.device, "where to compute: auto, cuda, host")
      ->check(CLI::IsMember({"auto", "cuda", "host"}));
  app.add_option("--device-budget", options.device_budget, "bytes of device memory, e.g. 512MiB (default: measured)");
  app.add_option("--host-budget", options.host_budget, "bytes of host memory (default: measured)");
  app.add_option("--param-home", options.param_home, "where weights live: device, host, nvme (default: what fits)")
      ->check(CLI::IsMember({"device", "host", "nvme"}));
  app.add_option("--nvme", options.nvme_dir, "folder on the drive, for weights that stream from there");
}

engine::EngineConfig engine_config_of(const EngineOptions& options) {
  engine::EngineConfig config;
  config.model = options.model;
  config.training = false;
  config.batch_size = options.batch_size;
  config.max_tokens = options.max_tokens;
  if (options.device == "cuda") engine::require_cuda_devices();
  config.cuda_device = engine::cuda_device_of(options.device == "cuda"   ? engine::DeviceChoice::Cuda
                                              : options.device == "host" ? engine::DeviceChoice::Host
                                                                         : engine::DeviceChoice::Auto);
  if (options.fp32) config.param_type = DType::F32;
  if (options.compute == "fp32") config.compute = engine::Compute::Fp32;
  if (options.compute == "bf16") config.compute = engine::Compute::ParamType;
  if (!options.device_budget.empty()) config.device_budget = parse_bytes(options.device_budget);
  if (!options.host_budget.empty()) config.host_budget = parse_bytes(options.host_budget);
  if (!options.nvme_dir.empty()) config.nvme_paths = {options.nvme_dir};
  if (options.param_home == "device") config.param_home = offload::TierKind::Device;
  if (options.param_home == "host") config.param_home = offload::TierKind::Host;
  if (options.param_home == "nvme") config.param_home = offload::TierKind::Nvme;
  return config;
}

bool parse_options(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(std::string(error.what()) + "; see `strata " + app.get_name() + " --help`");
  }
  return true;
}

}  // namespace strata::cli
