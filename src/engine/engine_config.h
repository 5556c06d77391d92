// What an Engine is made of: values only, so that a program can embed it in a few lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/block_codes.h"
#include "core/communicator.h"
#include "core/dtype.h"
#include "core/optimizer_config.h"
#include "core/trace.h"
#include "engine/loss_scale.h"
#include "offload/tier.h"

namespace strata::engine {

// Type in which the host multiplies matrices. Auto: fp32 where 16-bit products are slower (probed once), and the log
// says which.
enum class Compute : std::uint8_t { Auto, ParamType, Fp32 };
enum class IoBackend : std::uint8_t { Auto, Uring, Threads };

// Order of several micro-batches (zero::Accumulation). With tied embeddings, and where gradients are not added in fp32,
// the two orders differ in the last bits, so there Auto is horizontal; else it is vertical where that moves fewer bytes
// and fits.
enum class Accumulation : std::uint8_t { Auto, Horizontal, Vertical };

// For slow links between nodes: ZeRO++ (docs/distributed.md). Each but `node_partition` changes bits.
struct SlowLinks {
  std::optional<BlockCode> weights = std::nullopt;    // how gathered weights travel; stage 3
  std::optional<BlockCode> gradients = std::nullopt;  // how gradients travel that are added up over ranks
  bool two_hops = false;                              // inside the node and between nodes one after the other
  bool node_partition = false;  // stage 3: each node keeps a copy of the parameters, divided among its ranks
};

// Where updates run. Host: on the processor. Device: on the device where the states are at home there, else on the
// processor. Streamed: on the device, to which states that are not at home there travel and back. Auto: as Device, and
// part of the others is streamed where that was measured to end sooner and its staging fits. Changes no bit.
enum class UpdateSite : std::uint8_t { Auto, Host, Device, Streamed };

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 1;  // 0: no clipping
};

struct EngineConfig {
  // A Hugging Face folder: config.json and, unless `random_weights`, safetensors.
  std::filesystem::path model;
  // Weights drawn from `seed` (normal, 0.02; norms 1) instead of read: for training from scratch and for benchmarks.
  bool random_weights = false;
  bool training = true;  // false: no gradients and no optimizer states (evaluation, generation)
  // Prefixes of the names of parameters that are not trained, whole layers each (models::freeze()): they have no
  // gradients and no states.
  std::vector<std::string> frozen_parameters = {};
  DType param_type = DType::BF16;  // BF16 or F16 with fp32 master, or F32
  Compute compute = Compute::Auto;
  std::int64_t loss_chunk_tokens = 256;  // positions whose logits exist at once; changes bits

  // The largest micro-batch that will come, and how many are added up for one update.
  std::int64_t batch_size = 1;
  std::int64_t max_tokens = 512;
  std::int64_t micro_batches = 1;
  Accumulation accumulation = Accumulation::Auto;
  // Whether gradients of several micro-batches are added in fp32; else in param_type, in half the memory. Changes bits.
  bool accumulate_in_fp32 = true;
  // Layers whose activations are computed again in backward instead of kept; at most all but the first and the last.
  // Absent: those that do not fit. Changes no bit.
  std::optional<std::uint64_t> recomputed_layers;
  // Layers, counted from the loss, whose parameters stay gathered from their first use in a step to their last. Absent:
  // on several ranks in stage 3 those that the device budget has room for, else none. Changes no bit.
  std::optional<std::uint64_t> held_layers;
  AdamWConfig adamw;
  // For fp16: gradients of the scaled loss. Changes bits; a scale that is a power of two only where a 16-bit gradient
  // over- or underflows.
  std::optional<LossScaleConfig> loss_scale;
  OptimizerConfig optimizer;  // which one, and how its states are stored; changes bits but for an exact master

  // The GPU to compute on, as this process counts them; absent: the host is the device.
  std::optional<int> cuda_device;

  // Bytes per tier; absent: measured. The nvme tier exists when nvme_paths is not empty.
  std::optional<std::uint64_t> device_budget, host_budget, nvme_budget;
  // Homes; absent: chosen from the budgets, gradients on nvme only where they fit nowhere else.
  std::optional<offload::TierKind> param_home, grad_home, optimizer_home;
  // Shares of the bytes that stay in host memory although the home is nvme: 0 to 1.
  double param_host_share = 0, optimizer_host_share = 0;
  // Share of the optimizer states' bytes, in whole groups, at home on the device although `optimizer_home` is another
  // tier. Absent: none where that home is asked for, else what fits once graphs are kept.
  std::optional<double> optimizer_device_share;
  UpdateSite update_site = UpdateSite::Auto;
  std::vector<std::filesystem::path> nvme_paths;
  IoBackend io_backend = IoBackend::Auto;
  std::optional<std::uint64_t> io_block_bytes;
  std::optional<unsigned> io_queue_depth;
  std::optional<std::uint64_t> slot_bytes, look_ahead_bytes;
  bool nvme_checksums = false;
  // Updates run beside forward and backward; each layer's next forward waits for its own. Without clipping they begin
  // during backward, each as soon as its gradient is complete; with clipping, a loss scale or `delay_update`, under the
  // next forward. Changes no bit. A step whose gradient is not finite is skipped, but where updates begin during
  // backward it throws DataError and ends the run: later layers are updated by then.
  bool overlap_update = true;
  bool delay_update = false;
  Trace* trace = nullptr;  // gets compute, updates and every drive request; must outlive the engine; null = none

  std::size_t adam_threads = 0;     // 0: as many as there are usable CPUs; none of these changes bits
  std::size_t io_threads = 0;       // of the thread backend
  std::size_t compute_threads = 0;  // fp32 products of MKL may change bits with this one
  std::uint64_t seed = 42;

  // The ranks that train together, this one among them; null: this process alone. All have the same configuration but
  // for this field, `trace`, and paths.
  std::shared_ptr<Communicator> comm;
  // Of a run on several nodes with equally many ranks each, rank = node * ranks per node + place: those of this rank's
  // node, and those in its place of every node. Null where nothing below needs them.
  std::shared_ptr<Communicator> node_comm;
  std::shared_ptr<Communicator> across_comm;
  std::uint64_t communicator_bytes = 0;  // host memory that the communicators hold
  SlowLinks slow_links;
  // Hybrid sharding: the model is divided among the ranks of a node, and every node has all of it. Changes bits.
  bool shard_within_node = false;
  std::size_t local_ranks = 1;  // of them, those that share this machine's memory, cores and drives
  // The same on all ranks of a run and of no other on this machine. Empty: ranks do not share the queue of a drive.
  std::string job;
  // What ranks divide among them: 0 nothing, 1 the optimizer states, 2 and the gradients, 3 and the parameters.
  int zero_stage = 3;
  std::uint64_t persistence_threshold = 0;  // stage 3: groups with fewer parameters keep them whole on every rank
  // Gradients are added one by one in the order of the global batch, so that as many global micro-batches give the same
  // bits on any number of ranks; for fp32, from stage 1 on. Changes bits; takes N times the gradients' traffic to their
  // homes.
  bool rank_independent_sums = false;
  // For tests: streams run late and poison what is released.
  bool adversarial_streams = false;
};

}  // namespace strata::engine
