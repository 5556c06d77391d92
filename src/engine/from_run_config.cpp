#include "engine/from_run_config.h"

#include "core/error.h"
#include "core/log.h"
#include "engine/cuda_plugin.h"

namespace strata::engine {
namespace {

Compute compute_of(ComputeChoice choice) {
  switch (choice) {
    case ComputeChoice::Auto:
      return Compute::Auto;
    case ComputeChoice::Bf16:
    case ComputeChoice::Fp16:
      return Compute::ParamType;
    case ComputeChoice::Fp32:
      return Compute::Fp32;
  }
  return Compute::Auto;
}

Accumulation accumulation_of(AccumulationChoice choice) {
  switch (choice) {
    case AccumulationChoice::Auto:
      return Accumulation::Auto;
    case AccumulationChoice::Horizontal:
      return Accumulation::Horizontal;
    case AccumulationChoice::Vertical:
      return Accumulation::Vertical;
  }
  return Accumulation::Auto;
}

UpdateSite update_site_of(UpdateSiteChoice choice) {
  switch (choice) {
    case UpdateSiteChoice::Auto:
      return UpdateSite::Auto;
    case UpdateSiteChoice::Host:
      return UpdateSite::Host;
    case UpdateSiteChoice::Device:
      return UpdateSite::Device;
    case UpdateSiteChoice::Streamed:
      return UpdateSite::Streamed;
  }
  return UpdateSite::Auto;
}

// A split class has its home on the farthest of its tiers. `host_share` is of what is not on the device.
void split(const StrataConfig::Placement::Split& shares, std::optional<offload::TierKind>& home, double& host_share) {
  if (!shares.given()) return;
  using offload::TierKind;
  home = shares.nvme > 0 ? TierKind::Nvme : shares.host > 0 ? TierKind::Host : TierKind::Device;
  if (shares.nvme > 0) host_share = shares.device > 0 ? shares.host / (shares.host + shares.nvme) : shares.host;
}

std::optional<BlockCode> code_of(TravelCode code) {
  if (code == TravelCode::None) return std::nullopt;
  return code == TravelCode::Int8 ? BlockCode::Int8 : BlockCode::Int4;
}

IoBackend backend_of(IoBackendChoice choice) {
  switch (choice) {
    case IoBackendChoice::Auto:
      return IoBackend::Auto;
    case IoBackendChoice::Uring:
      return IoBackend::Uring;
    case IoBackendChoice::Threads:
      return IoBackend::Threads;
  }
  return IoBackend::Auto;
}

}  // namespace

std::optional<int> cuda_device_of(DeviceChoice choice) {
  if (choice == DeviceChoice::Cuda) return 0;
  if (choice == DeviceChoice::Host) return std::nullopt;
  const CudaDevices found = cuda_devices();
  if (found.count > 0 && found.torch != cuda::TorchPlace::Nowhere) return 0;
  if (found.count > 0) log::warning("the GPU is left alone, because the CUDA plug-in was built without torch");
  if (found.count == 0 && found.has_driver) log::warning("no GPU is used: " + found.why_no_more);
  return std::nullopt;
}

EngineConfig engine_config(const RunConfig& run) {
  EngineConfig config;
  config.cuda_device = cuda_device_of(run.strata.device);
  config.model = run.model_name_or_path;
  config.frozen_parameters = run.frozen_parameters;
  config.param_type = run.fp16 ? DType::F16 : run.bf16 ? DType::BF16 : DType::F32;
  if (run.fp16) {
    config.loss_scale = {run.loss_scale, run.initial_loss_scale, run.min_loss_scale, run.loss_scale_window};
  }
  config.compute = compute_of(run.strata.compute);
  config.loss_chunk_tokens = run.strata.loss_chunk;
  config.batch_size = run.per_device_train_batch_size;
  config.max_tokens = run.max_seq_length;
  config.micro_batches = run.gradient_accumulation_steps;
  config.accumulation = accumulation_of(run.strata.accumulation);
  config.accumulate_in_fp32 = run.strata.accumulate_in_fp32;
  if (const AutoCount& layers = run.strata.recompute.layers) {
    config.recomputed_layers = static_cast<std::uint64_t>(*layers);
  }
  if (run.strata.held_layers) config.held_layers = static_cast<std::uint64_t>(*run.strata.held_layers);
  config.delay_update = run.strata.delay_update;
  config.zero_stage = static_cast<int>(run.strata.zero_stage);
  config.persistence_threshold = static_cast<std::uint64_t>(run.strata.persistence_threshold);
  config.shard_within_node = run.strata.shard_within_node;
  config.slow_links = {code_of(run.strata.slow_links.weights), code_of(run.strata.slow_links.gradients),
                       run.strata.slow_links.two_hops, run.strata.slow_links.node_partition};
  config.rank_independent_sums = run.strata.rank_independent_sums;
  config.adamw = {run.adam_beta1, run.adam_beta2, run.adam_epsilon, run.weight_decay, run.max_grad_norm};
  config.optimizer = {run.optim, run.strata.optimizer_states.master, run.strata.optimizer_states.moments};
  config.device_budget = run.strata.budgets.device;
  config.host_budget = run.strata.budgets.host;
  config.nvme_budget = run.strata.budgets.nvme;
  config.param_home = run.strata.placement.param;
  config.grad_home = run.strata.placement.grad;
  config.optimizer_home = run.strata.placement.optimizer;
  split(run.strata.placement.shares.param, config.param_home, config.param_host_share);
  split(run.strata.placement.shares.optimizer, config.optimizer_home, config.optimizer_host_share);
  if (const double device = run.strata.placement.shares.optimizer.device; device > 0) {
    config.optimizer_device_share = device;
  }
  config.update_site = update_site_of(run.strata.update_site);
  config.nvme_checksums = run.strata.nvme.checksums;
  config.nvme_paths = run.strata.nvme.paths;
  config.io_backend = backend_of(run.strata.nvme.backend);
  config.io_block_bytes = run.strata.nvme.block_size;
  if (run.strata.nvme.queue_depth) config.io_queue_depth = static_cast<unsigned>(*run.strata.nvme.queue_depth);
  config.slot_bytes = run.strata.slot_size;
  config.look_ahead_bytes = run.strata.prefetch;
  config.adam_threads = static_cast<std::size_t>(run.strata.adam_threads);
  config.io_threads = static_cast<std::size_t>(run.strata.io_threads);
  config.compute_threads = static_cast<std::size_t>(run.strata.compute_threads);
  config.seed = static_cast<std::uint64_t>(run.seed);
  config.adversarial_streams = run.strata.adversarial_streams;
  return config;
}

}  // namespace strata::engine
