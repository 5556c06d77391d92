// RunConfig: everything that `strata train` takes, from one YAML or JSON file and from flags that override it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/optimizer_config.h"
#include "engine/lr_schedule.h"
#include "offload/tier.h"

namespace strata::engine {

// One file of training or validation data.
struct DatasetConfig {
  std::string path;
  std::string type = "auto";                  // auto | alpaca | sharegpt | messages | completion | text | tokens
  std::map<std::string, std::string> fields;  // our name of a field -> its name in the file
  bool operator==(const DatasetConfig&) const = default;
};

// Where to continue from: nowhere, the newest valid checkpoint of output_dir, or one named checkpoint.
struct ResumeConfig {
  enum class From : std::uint8_t { Start, Newest, Path };
  From from = From::Start;
  std::filesystem::path path;  // only with From::Path
  bool operator==(const ResumeConfig&) const = default;
};

enum class ReportTo : std::uint8_t { None, Jsonl };
enum class SaveStrategy : std::uint8_t { No, Steps };
enum class DeviceChoice : std::uint8_t { Auto, Host, Cuda };
enum class ComputeChoice : std::uint8_t { Auto, Bf16, Fp16, Fp32 };
enum class AccumulationChoice : std::uint8_t { Auto, Horizontal, Vertical };
enum class UpdateSiteChoice : std::uint8_t { Auto, Host, Device, Streamed };
// How elements travel between ranks: as they are, or as blocks of integers.
enum class TravelCode : std::uint8_t { None, Int8, Int4 };
enum class IoBackendChoice : std::uint8_t { Auto, Uring, Threads };

// No value = auto: measured, or chosen by the plan.
using AutoBytes = std::optional<std::uint64_t>;
using AutoCount = std::optional<std::int64_t>;
using AutoTier = std::optional<offload::TierKind>;

// How many layers recompute their activations in backward. No value = auto: those whose activations do not fit.
struct RecomputeChoice {
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  AutoCount layers;
  bool operator==(const RecomputeChoice&) const = default;
};

// Strata's own block. All of it may change speed and memory; only `compute`, `loss_chunk` and, through the order of
// sums, `compute_threads` and a vertical `accumulation` with tied embeddings may change the numbers; and narrow
// moments, which are not exact.
struct StrataConfig {
  std::int64_t zero_stage = 3;
  std::int64_t persistence_threshold = 0;
  bool rank_independent_sums = false;  // changes bits
  DeviceChoice device = DeviceChoice::Auto;
  struct Budgets {
    AutoBytes device;
    AutoBytes host;
    AutoBytes nvme;
    bool operator==(const Budgets&) const = default;
  } budgets;
  struct Placement {
    AutoTier param;
    AutoTier grad;  // never Nvme
    AutoTier optimizer;
    // The parts of a class's bytes on each tier; on the device, of the optimizer alone, in whole groups. All 0: not
    // split; else they add up to 1.
    struct Split {
      double host = 0;
      double nvme = 0;
      double device = 0;
      bool given() const { return host > 0 || nvme > 0 || device > 0; }
      bool operator==(const Split&) const = default;
    };
    struct Shares {
      Split param;
      Split optimizer;
      bool operator==(const Shares&) const = default;
    } shares;
    bool operator==(const Placement&) const = default;
  } placement;
  struct Nvme {
    std::vector<std::filesystem::path> paths;
    AutoBytes block_size;
    AutoCount queue_depth;
    IoBackendChoice backend = IoBackendChoice::Auto;
    bool checksums = false;
    AutoBytes rated_writes;  // that the drives are rated for; unset = not known
    AutoBytes wear_limit;    // that this run may write to its swap files; unset = none
    bool operator==(const Nvme&) const = default;
  } nvme;
  struct OptimizerStates {
    MasterEncoding master = MasterEncoding::Fp32;
    MomentEncoding moments = MomentEncoding::Fp32;
    bool operator==(const OptimizerStates&) const = default;
  } optimizer_states;
  ComputeChoice compute = ComputeChoice::Auto;  // type in which the host multiplies matrices
  AccumulationChoice accumulation = AccumulationChoice::Auto;
  bool accumulate_in_fp32 = true;  // gradients of several micro-batches
  std::int64_t loss_chunk = 256;   // tokens of one piece of the logits
  RecomputeChoice recompute;
  AutoCount held_layers;  // auto = on several ranks those that fit, else none
  UpdateSiteChoice update_site = UpdateSiteChoice::Auto;
  bool delay_update = false;      // updates wait for all gradients, as with clipping
  AutoBytes prefetch;             // bytes fetched ahead of their use
  AutoBytes slot_size;            // bytes of one staging slot
  std::int64_t adam_threads = 0;  // 0 = auto, as for the next two
  std::int64_t io_threads = 0;
  std::int64_t compute_threads = 0;
  AutoCount ranks_per_node;        // auto = as many as run on this machine
  bool shard_within_node = false;  // this and the next change bits, but for node_partition
  struct SlowLinks {
    TravelCode weights = TravelCode::None;
    TravelCode gradients = TravelCode::None;
    bool two_hops = false;
    bool node_partition = false;
    bool operator==(const SlowLinks&) const = default;
  } slow_links;
  struct Comm {
    double timeout = 1800;      // seconds of a collective before the run ends
    double join_timeout = 300;  // seconds until all ranks have come
    std::string interface;      // of the network; empty = the one that leads to MASTER_ADDR
    bool operator==(const Comm&) const = default;
  } comm;
  std::string trace;                 // where a Chrome trace of the run goes; empty = none
  bool adversarial_streams = false;  // for tests: streams run late and poison what they read (core/host_device.h)
  bool operator==(const StrataConfig&) const = default;
};

// A plain value. Names and defaults follow TrainingArguments of Hugging Face transformers; docs/config.md says where
// not.
struct RunConfig {
  std::string model_name_or_path;
  std::vector<DatasetConfig> datasets;
  std::vector<DatasetConfig> val_datasets;
  double val_size = 0;  // below 1 a share of the training data, else a number of samples
  std::filesystem::path output_dir = "output";
  bool overwrite_output_dir = false;
  std::int64_t max_seq_length = 1024;
  std::int64_t per_device_train_batch_size = 8;
  std::int64_t per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t global_batch_size = 0;  // 0 = the product of the two above and the world size; else it must equal it
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;  // wins over num_train_epochs where > 0
  double learning_rate = 5e-5;
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;  // 0 = no clipping
  OptimizerKind optim = OptimizerKind::AdamW;
  std::vector<std::string> frozen_parameters;  // prefixes of names: EngineConfig
  LrKind lr_scheduler_type = LrKind::Linear;
  double warmup_ratio = 0;
  std::int64_t warmup_steps = 0;  // wins over warmup_ratio where > 0
  // Type of the weights; at most one is true, with neither they are fp32.
  bool bf16 = true;
  bool fp16 = false;
  // Only with fp16; see LossScaleConfig.
  double loss_scale = 0;  // 0 = dynamic
  double initial_loss_scale = 65536;
  double min_loss_scale = 1;
  std::int64_t loss_scale_window = 2000;
  std::int64_t logging_steps = 1;
  SaveStrategy save_strategy = SaveStrategy::Steps;  // No: neither checkpoints nor the model
  std::int64_t save_steps = 500;                     // 0 = at the end only
  std::int64_t save_total_limit = 0;                 // 0 = keep all
  std::int64_t eval_steps = 0;                       // 0 = at the end only
  ResumeConfig resume_from_checkpoint;
  std::int64_t seed = 42;
  ReportTo report_to = ReportTo::Jsonl;
  std::string sample_prompt;  // continued before and after training; empty = off
  StrataConfig strata;
  bool operator==(const RunConfig&) const = default;

  // The schedule of a run of `total_steps` updates.
  LrSchedule lr_schedule(std::int64_t total_steps) const;
};

// Where a configuration comes from and what the command that reads it needs.
struct RunConfigSource {
  std::filesystem::path file = {};  // empty = flags only
  // "--learning-rate", "2e-5", "--bf16=false", "--strata.budgets.device", "2GiB", ...
  std::vector<std::string> flags = {};
  std::vector<std::string> required = {};  // keys that must be given, e.g. "model_name_or_path"
  std::int64_t world_size = 1;
};

// Throws: ConfigError that lists everything wrong: unknown keys with the nearest name, keys given twice, values out of
// range, combinations that contradict each other, with file and line or flag.
RunConfig load_run_config(const RunConfigSource& source);
// As above, with the contents of the file; source.file names it in messages.
RunConfig parse_run_config(std::string_view text, const RunConfigSource& source);

// The resolved configuration, every key written; parse_run_config(to_yaml(c)) == c.
std::string to_yaml(const RunConfig& config);

// Generated from the table that parsing uses: the options part of --help, and the tables of docs/config.md.
std::string run_config_help();
std::string run_config_markdown();

}  // namespace strata::engine
