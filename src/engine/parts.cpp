#include "engine/parts.h"

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"
#include "engine/cuda_plugin.h"
#include "engine/gpu_allocator.h"
#include "engine/machine.h"
#include "engine/update_probe.h"
#include "models/decoder.h"
#include "zero/torch_host.h"
#include "zero/torch_layer_compute.h"

namespace strata::engine {
namespace {

using namespace strata::literals;
using offload::TierKind;

// Code, thread stacks and the scratch of matrix products: what the process holds outside every budget.
constexpr std::uint64_t kProcessBase = 512_MiB;
// Of a GPU: modules and handles that CUDA and torch load after the memory was asked for.
constexpr std::uint64_t kGpuBase = 512_MiB;
// Of a GPU, for each communicator of NCCL: what it takes beyond the channels that connect_ranks() has connected when
// the free memory is asked for. Unproven: no GPU has run this.
constexpr std::uint64_t kNcclBase = 128_MiB;
// Of a GPU that is not here: more than any has, for the more of them, the more memory attention takes.
constexpr std::size_t kAssumedMultiprocessors = 192;
// What a machine that cannot be asked is taken to have: a PCIe 4.0 link of 16 lanes that carries 25 GB/s each way, and
// device memory of 1 TB/s. Assumed, not measured, and the plan says so.
constexpr double kAssumedLink = 1 / 25e9;
constexpr double kAssumedDeviceByte = 1 / 1e12;

Compute choose_compute(const EngineConfig& config) {
  if (config.param_type == DType::F32) return Compute::ParamType;
  if (config.compute != Compute::Auto) return config.compute;
  if (config.cuda_device) return Compute::ParamType;
  return zero::fp32_speed_over(config.param_type) >= zero::kUpcastPays ? Compute::Fp32 : Compute::ParamType;
}

// What was measured decides alike on every rank: the first one's counts.
template <typename T>
void agree(Communicator& comm, T& measured) {
  static_assert(std::is_trivially_copyable_v<T>);
  comm.broadcast(std::as_writable_bytes(std::span(&measured, 1)), 0);
}

std::uint64_t free_on_drives(const EngineConfig& config) {
  std::uint64_t bytes = 0;
  for (const auto& path : config.nvme_paths) bytes += free_disk_bytes(path);
  return usable_of_free(bytes);
}

Gpu ask_gpu(int device) {
  const cuda::TorchPlace torch = require_cuda_devices().torch;
  return {.facts = open_cuda({.device = device, .budget_bytes = kPageBytes})->facts(), .torch = torch};
}

// Of the GPU whose memory torch's tensors will take, the largest of all ranks', which plan alike; 0 where that memory
// is the host's, as with the fake runtime of the tests.
std::size_t torch_multiprocessors(const EngineConfig& config, const std::optional<Gpu>& gpu) {
  std::size_t mine = 0;
  if (config.cuda_device && !gpu) mine = kAssumedMultiprocessors;
  if (gpu && gpu->torch == cuda::TorchPlace::Device) mine = std::max<std::size_t>(gpu->facts.multiprocessors, 1);
  if (!config.comm) return mine;
  std::vector<double> all(config.comm->world());
  all[config.comm->rank()] = static_cast<double>(mine);
  config.comm->all_gather_values(all);
  return static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
}

zero::UpdateCosts update_costs(const EngineConfig& config, bool gpu_is_here) {
  UpdateProbe probe{config.optimizer, config.param_type, config.adam_threads, std::nullopt};
  if (gpu_is_here) probe.cuda_device = config.cuda_device;
  zero::UpdateCosts costs = measure_update_costs(probe);
  if (!config.cuda_device || gpu_is_here) return costs;
  log::info("the GPU of this plan is not here: a link of 25 GB/s each way, device memory of 1 TB/s and " +
            std::to_string(kAssumedMultiprocessors) + " multiprocessors are assumed");
  costs.to_device = costs.to_host = kAssumedLink;
  costs.device_update =
      kAssumedDeviceByte * 2 *
      (state_bytes_per_element(config.optimizer, config.param_type) + static_cast<double>(bytes_of(config.param_type)));
  costs.cores = zero::UpdateCosts::Cores::Own;
  return costs;
}

std::uint64_t communicators_of_several(const EngineConfig& config) {
  const auto counts = [](const std::shared_ptr<Communicator>& comm) { return comm && comm->world() > 1; };
  return std::uint64_t{counts(config.comm)} + counts(config.node_comm) + counts(config.across_comm);
}

// Device memory that is outside of every budget. The fake runtime of the tests loads nothing more, and its ranks speak
// through Gloo.
std::uint64_t gpu_base(const EngineConfig& config, const Gpu& gpu) {
  return gpu.torch == cuda::TorchPlace::Device ? kGpuBase + kNcclBase * communicators_of_several(config) : 0;
}

std::uint64_t device_budget_on(const EngineConfig& config, const std::optional<Gpu>& gpu, Machine machine) {
  if (!gpu || machine == Machine::Other) {
    if (config.device_budget) return *config.device_budget;
    throw ConfigError("strata.budgets.device is needed: the GPU of the run is not here to be asked for its memory");
  }
  const std::uint64_t base = gpu_base(config, *gpu);
  const std::uint64_t free = gpu->facts.free_bytes > base ? gpu->facts.free_bytes - base : 0;
  if (config.device_budget.value_or(0) > free) {
    throw OutOfBudget("strata.budgets.device asks for " + format_bytes(*config.device_budget) + ", but of the " +
                          format_bytes(gpu->facts.total_bytes) + " of " + gpu->facts.name + " only " +
                          format_bytes(free) +
                          " are free beside what CUDA, torch and NCCL take; lower strata.budgets.device or end what "
                          "else uses the GPU",
                      *config.device_budget, free);
  }
  return config.device_budget.value_or(free / 20 * 19);
}

}  // namespace

ModelParts make_model_parts(const EngineConfig& config, Machine machine) {
  ModelParts parts;
  // First, so that torch finds CUDA when it looks for it.
  if (config.cuda_device && (machine == Machine::This || cuda_devices().count > 0)) {
    parts.gpu = ask_gpu(*config.cuda_device);
    (void)device_budget_on(config, parts.gpu, machine);  // what is too much shall not fail in a probe
  }
  parts.config = hf::read_model_config(config.model);
  if (config.max_tokens > parts.config.max_position_embeddings && parts.config.max_position_embeddings > 0) {
    throw ConfigError("max_seq_length " + std::to_string(config.max_tokens) +
                      " exceeds the model's max_position_embeddings " +
                      std::to_string(parts.config.max_position_embeddings) + "; lower max_seq_length");
  }
  parts.shape = rank_shape(config);
  parts.chosen = choose_compute(config);
  if (config.comm) agree(*config.comm, parts.chosen);
  models::DecoderOptions options;
  options.group_type = zero::torch_type(config.param_type);
  options.compute = parts.chosen == Compute::Fp32 ? models::DecoderOptions::Compute::Fp32
                                                  : models::DecoderOptions::Compute::GroupType;
  options.loss_chunk_tokens = config.loss_chunk_tokens;
  if (config.training) options.frozen_parameters = config.frozen_parameters;
  options.gpu_multiprocessors = torch_multiprocessors(config, parts.gpu);
  std::unique_ptr<zero::Model> model = models::make_decoder(parts.config, options);
  parts.activation_bytes = model->activation_bytes(config.batch_size, config.max_tokens);
  parts.open_micro_batch_bytes = model->open_micro_batch_bytes(config.batch_size, config.max_tokens);
  parts.graph_bytes = model->graph_bytes(config.batch_size, config.max_tokens);
  const bool chooses = config.update_site == UpdateSite::Auto && config.optimizer_home != TierKind::Device;
  if (config.training && (chooses || config.cuda_device)) {  // a GPU's link is also part of the ideal step
    parts.update_costs = update_costs(config, parts.gpu.has_value());
  }
  // By ranks of all settings, so that those that differ get as far as being told.
  if (config.comm) agree(*config.comm, parts.update_costs);
  if (options.gpu_multiprocessors > 0) {
    for (std::uint64_t* bytes : {&parts.activation_bytes, &parts.open_micro_batch_bytes, &parts.graph_bytes}) {
      *bytes = with_gpu_fragments(*bytes);
    }
    parts.activation_bytes += gpu_allocator_bytes();
  }
  std::optional<int> torch_device;
  if (parts.gpu && parts.gpu->torch == cuda::TorchPlace::Device) torch_device = config.cuda_device;
  parts.compute = zero::make_torch_layer_compute(std::move(model), config.param_type, parts.shape.shards(),
                                                 parts.shape.replicas(), torch_device);
  return parts;
}

std::vector<zero::GroupDecl> parameter_groups(const hf::ModelConfig& config) {
  return models::make_decoder(config, models::DecoderOptions{})->groups();
}

PerTier resolve_budgets(const EngineConfig& config, const std::optional<Gpu>& gpu, Machine machine) {
  // Ranks on this machine share its memory and its drives alike.
  const std::uint64_t ranks = std::max<std::size_t>(config.local_ranks, 1);
  const std::uint64_t available = available_ram_bytes() / ranks;
  const std::uint64_t usable = available > 2 * kProcessBase ? (available - kProcessBase) / 10 * 9 : 0;
  const bool host_is_device = !config.cuda_device;
  const std::uint64_t asked = (host_is_device ? config.device_budget.value_or(0) : 0) + config.host_budget.value_or(0);
  if (asked > available && machine == Machine::This) {
    throw OutOfBudget(
        "strata.budgets ask for " + format_bytes(asked) + " of RAM" +
            (host_is_device ? " (the host device and the host tier share it)" : "") + ", but only " +
            format_bytes(available) +
            (ranks > 1 ? " are available to each of the " + std::to_string(ranks) + " ranks here"
                       : std::string(" are available")) +
            (host_is_device ? "; lower strata.budgets.device or strata.budgets.host" : "; lower strata.budgets.host"),
        asked, available);
  }
  const std::uint64_t left = usable > asked ? usable - asked : 0;
  PerTier budgets{};
  const bool both_open = host_is_device && !config.device_budget && !config.host_budget;
  budgets[0] = host_is_device ? config.device_budget.value_or(both_open ? left / 2 : left)
                              : device_budget_on(config, gpu, machine);
  budgets[1] = config.host_budget.value_or(both_open ? left / 2 : left);
  if (config.nvme_paths.empty()) return budgets;
  const std::uint64_t free = free_on_drives(config) / ranks;
  if (config.nvme_budget.value_or(0) > free && machine == Machine::This) {
    throw OutOfBudget("strata.budgets.nvme asks for " + format_bytes(*config.nvme_budget) + ", but only " +
                          format_bytes(free) + (ranks > 1 ? " may be used by each rank in " : " may be used in ") +
                          config.nvme_paths.front().string() +
                          "; free some disk or name another folder in strata.nvme.paths",
                      *config.nvme_budget, free);
  }
  budgets[2] = config.nvme_budget.value_or(free);
  return budgets;
}

zero::UpdateTime update_time(const EngineConfig& config) {
  if (!config.overlap_update) return zero::UpdateTime::AfterBackward;
  // One overflow anywhere skips the whole step, so a loss scale needs all gradients first, as clipping does.
  const bool early = !(config.adamw.max_grad_norm > 0) && !config.delay_update && !config.loss_scale;
  return early ? zero::UpdateTime::DuringBackward : zero::UpdateTime::UnderForward;
}

std::size_t shard_rank(const EngineConfig& config) {
  if (!config.comm) return 0;
  return config.shard_within_node && config.comm->world() > 1 ? config.node_comm->rank() : config.comm->rank();
}

PlanRequest plan_request(const EngineConfig& config, const ModelParts& parts, const PerTier& budgets) {
  PlanRequest request;
  request.compute = parts.compute.get();
  request.param_type = config.param_type;
  request.training = config.training;
  if (config.training) {
    request.states = state_specs(config.optimizer, config.param_type);
    if (reads_param(config.optimizer, config.param_type)) request.param_access = offload::Access::ReadWrite;
  }
  request.division = {config.zero_stage, config.persistence_threshold, shard_rank(config),
                      config.rank_independent_sums};
  request.shape = parts.shape;
  request.communicator_bytes = config.communicator_bytes;
  request.micro_batches = static_cast<std::size_t>(config.micro_batches);
  request.accumulate_in_fp32 = config.accumulate_in_fp32;
  request.activation_bytes = parts.activation_bytes;
  request.open_micro_batch_bytes = parts.open_micro_batch_bytes;
  request.graph_bytes = parts.graph_bytes;
  request.recomputed_layers = config.recomputed_layers;
  request.held_layers = config.held_layers;
  request.early_updates = update_time(config) == zero::UpdateTime::DuringBackward;
  if (config.accumulation != Accumulation::Auto) {
    request.accumulation =
        config.accumulation == Accumulation::Vertical ? zero::Accumulation::Vertical : zero::Accumulation::Horizontal;
  }
  request.budgets = budgets;
  request.param = config.param_home;
  request.grad = config.grad_home;
  request.optimizer = config.optimizer_home;
  request.param_host_share = config.param_host_share;
  request.optimizer_host_share = config.optimizer_host_share;
  request.optimizer_device_share = config.optimizer_device_share;
  request.update_site = config.update_site;
  request.update_costs = parts.update_costs;
  request.device_behind_link = config.cuda_device.has_value();
  request.slot_bytes = config.slot_bytes;
  request.look_ahead_bytes = config.look_ahead_bytes;
  return request;
}

}  // namespace strata::engine
