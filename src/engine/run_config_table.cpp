#include "engine/run_config_table.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <concepts>
#include <type_traits>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/config_values.h"
#include "engine/loss_scale.h"

namespace strata::engine {
namespace {

// What a value must satisfy, for everything that has a number.
struct Rule {
  std::string_view text = "";
  bool (*holds)(double) = nullptr;
};

constexpr Rule kAny;
constexpr Rule kPositive = {"must be greater than 0", [](double v) { return v > 0; }};
constexpr Rule kNotNegative = {"must be 0 or more", [](double v) { return v >= 0; }};
constexpr Rule kAtLeastOne = {"must be 1 or more", [](double v) { return v >= 1; }};
constexpr Rule kBeta = {"must be 0 or more and below 1", [](double v) { return v >= 0 && v < 1; }};
constexpr Rule kRatio = {"must be between 0 and 1", [](double v) { return v >= 0 && v <= 1; }};
constexpr Rule kSteps = {"must be -1 (off) or 1 or more", [](double v) { return v == -1 || v >= 1; }};
constexpr Rule kShareOrCount = {"must be a share below 1 or a whole number of samples",
                                [](double v) { return v >= 0 && (v < 1 || std::trunc(v) == v); }};
constexpr Rule kThreads = {"must be 0 (auto) to 1024", [](double v) { return v >= 0 && v <= 1024; }};
constexpr Rule kDepth = {"must be 1 to 4096", [](double v) { return v >= 1 && v <= 4096; }};
constexpr Rule kLossScale = {"must be greater than 0 and at most 2^64",
                             [](double v) { return v > 0 && v <= kLargestLossScale; }};
constexpr Rule kLossScaleOrOff = {"must be 0 (dynamic), or greater than 0 and at most 2^64",
                                  [](double v) { return v >= 0 && v <= kLargestLossScale; }};
constexpr Rule kPages = {"must be a positive multiple of 4096 bytes",
                         [](double v) { return v > 0 && std::fmod(v, static_cast<double>(kPageBytes)) == 0; }};
constexpr Rule kStage = {"must be 0, 1, 2 or 3", [](double v) { return v >= 0 && v <= 3; }};
template <class T>
std::optional<double> number_of(const T& value) {
  if constexpr (std::same_as<T, double> || std::same_as<T, std::int64_t>) {
    return static_cast<double>(value);
  } else if constexpr (std::same_as<T, AutoBytes> || std::same_as<T, AutoCount> || std::same_as<T, AutoTier>) {
    return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
  } else {
    return std::nullopt;
  }
}

// Builds rows that share a section. `field` maps a RunConfig to a reference to the member.
struct Section {
  std::string_view name;
  std::vector<Setting>& rows;

  template <class Field>
  Setting& add(std::string_view key, std::string_view aliases, Field field, Rule rule, std::string_view help) {
    using T = std::remove_cvref_t<decltype(field(std::declval<RunConfig&>()))>;
    Setting row;
    row.section = name;
    row.name = key;
    row.aliases = aliases;
    row.help = help;
    row.values = syntax_of(T{});
    if constexpr (std::same_as<T, bool> || std::same_as<T, ResumeConfig>) row.bare_flag = Setting::BareFlag::MeansTrue;
    row.set = [field](RunConfig& config, const YAML::Node& node) { read_value(node, field(config)); };
    row.get = [field](const RunConfig& config) { return write_value(field(config)); };
    row.violation = [field, rule](const RunConfig& config) -> std::string {
      const std::optional<double> number = number_of<T>(field(config));
      if (!number || rule.holds == nullptr || rule.holds(*number)) return "";
      return write_value(field(config)) + " " + std::string(rule.text);
    };
    return rows.emplace_back(std::move(row));
  }

  // A whole group set to "auto" at once; its members are written one by one.
  template <class Group>
  void add_auto_group(std::string_view key, Group group, std::string_view help) {
    Setting row;
    row.section = name;
    row.name = key;
    row.help = help;
    row.values = "auto | a group";
    row.set = [group](RunConfig& config, const YAML::Node& node) {
      if (!is_auto(scalar_text(node))) throw ConfigError(in_quotes(scalar_text(node)) + " is neither auto nor a group");
      group(config) = {};
    };
    row.violation = [](const RunConfig&) { return std::string(); };
    rows.push_back(std::move(row));
  }
};

// A macro because a pointer to member cannot name a member of a member.
#define STRATA_FIELD(member)  \
  [](auto& config) -> auto& { \
    return config.member;     \
  }

void add_model_and_data(std::vector<Setting>& rows) {
  Section s{"Model and data", rows};
  s.add("model_name_or_path", "base_model model", STRATA_FIELD(model_name_or_path), kAny,
        "Folder of a Hugging Face model.");
  s.add("datasets", "data dataset train_file", STRATA_FIELD(datasets), kAny,
        "A file, or a list of files or of {path, type, fields}; type is auto, alpaca, sharegpt, messages, completion, "
        "text or tokens; fields maps our name of a field to the name in the file.");
  s.add("val_datasets", "test_datasets eval_dataset val_data validation_file", STRATA_FIELD(val_datasets), kAny,
        "Validation data, written like datasets.");
  s.add("val_size", "val_set_size", STRATA_FIELD(val_size), kShareOrCount,
        "Validation data taken from datasets: a share below 1, or a number of samples; 0 = none.");
  s.add("max_seq_length", "sequence_len cutoff_len max_length", STRATA_FIELD(max_seq_length), kAtLeastOne,
        "Tokens of one sample; longer ones are cut, and counted.");
  s.add("sample_prompt", "", STRATA_FIELD(sample_prompt), kAny,
        "A text that the model continues before and after training; empty = off.");
}

void add_batches_and_steps(std::vector<Setting>& rows) {
  Section s{"Batches and steps", rows};
  s.add("per_device_train_batch_size", "micro_batch_size", STRATA_FIELD(per_device_train_batch_size), kAtLeastOne,
        "Samples of one forward and backward pass.");
  s.add("per_device_eval_batch_size", "eval_batch_size", STRATA_FIELD(per_device_eval_batch_size), kAtLeastOne,
        "Samples of one forward pass of an evaluation.");
  s.add("gradient_accumulation_steps", "", STRATA_FIELD(gradient_accumulation_steps), kAtLeastOne,
        "Forward and backward passes per update.");
  s.add("global_batch_size", "train_batch_size", STRATA_FIELD(global_batch_size), kNotNegative,
        "Samples per update, checked against micro batch x accumulation x ranks; 0 = not checked.");
  s.add("num_train_epochs", "num_epochs epochs", STRATA_FIELD(num_train_epochs), kPositive,
        "Times through the data; a fraction is fine.");
  s.add("max_steps", "", STRATA_FIELD(max_steps), kSteps, "Updates in all; wins over num_train_epochs; -1 = off.");
  s.add("seed", "", STRATA_FIELD(seed), kNotNegative, "Of the order of the data and of every random number.");
}

void add_optimizer(std::vector<Setting>& rows) {
  Section s{"Optimizer", rows};
  s.add("optim", "optimizer", STRATA_FIELD(optim), kAny,
        "adam decays weights through the gradient, adamw does not; momentum and nesterov are sgd with adam_beta1 as "
        "momentum.");
  s.add("frozen_parameters", "", STRATA_FIELD(frozen_parameters), kAny,
        "Names, or their beginnings, of weights that stay as they are: model.embed_tokens, model.layers.0, ...; whole "
        "layers each. They have no gradients and no optimizer states, and backward ends above the lowest layers that "
        "are all frozen.");
  s.add("learning_rate", "lr", STRATA_FIELD(learning_rate), kNotNegative, "The rate that warm-up climbs to.");
  s.add("lr_scheduler_type", "lr_scheduler", STRATA_FIELD(lr_scheduler_type), kAny, "What happens after warm-up.");
  s.add("warmup_ratio", "", STRATA_FIELD(warmup_ratio), kRatio, "Warm-up as a share of all updates, rounded up.");
  s.add("warmup_steps", "", STRATA_FIELD(warmup_steps), kNotNegative,
        "Warm-up in updates; wins over warmup_ratio where above 0.");
  s.add("weight_decay", "", STRATA_FIELD(weight_decay), kNotNegative, "Decoupled; never on norms and biases.");
  s.add("adam_beta1", "", STRATA_FIELD(adam_beta1), kBeta, "Decay of the first moment.");
  s.add("adam_beta2", "", STRATA_FIELD(adam_beta2), kBeta, "Decay of the second moment.");
  s.add("adam_epsilon", "", STRATA_FIELD(adam_epsilon), kPositive, "Added to the root of the second moment.");
  s.add("max_grad_norm", "gradient_clipping", STRATA_FIELD(max_grad_norm), kNotNegative,
        "Gradients are scaled down to this global norm; 0 = off.");
  s.add("bf16", "", STRATA_FIELD(bf16), kAny,
        "Weights and gradients in bfloat16 with fp32 masters; false = all fp32, unless fp16 is true.");
  s.add(
      "fp16", "", STRATA_FIELD(fp16), kAny,
      "Weights and gradients in half precision with fp32 masters, and a scaled loss; turns off bf16, whose default is "
      "on.");
  s.add("loss_scale", "", STRATA_FIELD(loss_scale), kLossScaleOrOff,
        "What fp16 multiplies the loss with in backward; 0 = dynamic: halved at an overflow, which skips the step, and "
        "doubled after loss_scale_window steps without one.");
  s.add("initial_loss_scale", "init_scale", STRATA_FIELD(initial_loss_scale), kLossScale,
        "The dynamic scale of the first step.");
  s.add("min_loss_scale", "", STRATA_FIELD(min_loss_scale), kLossScale,
        "A run that would need a smaller dynamic scale ends with an error.");
  s.add("loss_scale_window", "growth_interval", STRATA_FIELD(loss_scale_window), kAtLeastOne,
        "Steps in a row without an overflow before the dynamic scale doubles.");
}

void add_output(std::vector<Setting>& rows) {
  Section s{"Output", rows};
  s.add("output_dir", "", STRATA_FIELD(output_dir), kAny, "Checkpoints, metrics.jsonl, the resolved configuration.");
  s.add("overwrite_output_dir", "", STRATA_FIELD(overwrite_output_dir), kAny,
        "Start anew in a folder that holds checkpoints.");
  s.add("logging_steps", "", STRATA_FIELD(logging_steps), kAtLeastOne, "Updates between two logged ones.");
  s.add("save_strategy", "", STRATA_FIELD(save_strategy), kAny,
        "no = neither checkpoints nor the trained model are written: for trials and measurements.");
  s.add("save_steps", "", STRATA_FIELD(save_steps), kNotNegative,
        "Updates between two checkpoints; 0 = at the end only.");
  s.add("save_total_limit", "", STRATA_FIELD(save_total_limit), kNotNegative, "Newest checkpoints kept; 0 = all.");
  s.add("eval_steps", "", STRATA_FIELD(eval_steps), kNotNegative,
        "Updates between two evaluations; 0 = at the end only.");
  s.add("resume_from_checkpoint", "", STRATA_FIELD(resume_from_checkpoint), kAny,
        "true = the newest valid checkpoint of output_dir, or the path of one.");
  s.add("report_to", "", STRATA_FIELD(report_to), kAny, "jsonl = one object per logged update in metrics.jsonl.");
}

void add_strata(std::vector<Setting>& rows) {
  Section s{"Memory and speed", rows};
  s.add("strata.zero_stage", "", STRATA_FIELD(strata.zero_stage), kStage,
        "What ranks divide among them: 0 nothing, 1 the optimizer states, 2 and the gradients, 3 and the parameters.");
  s.add("strata.persistence_threshold", "", STRATA_FIELD(strata.persistence_threshold), kNotNegative,
        "Stage 3: layers with fewer parameters keep them whole on every rank.");
  s.add(
      "strata.rank_independent_sums", "", STRATA_FIELD(strata.rank_independent_sums), kAny,
      "true = add gradients one micro-batch after the other, so that the same global batch gives the same bits on any "
      "number of ranks; for fp32 and untied embeddings.");
  s.add("strata.device", "", STRATA_FIELD(strata.device), kAny,
        "Where the model computes: cuda = on a GPU, each rank of a machine on one of its own; host = on the processor; "
        "auto = "
        "on a GPU where there is one.");
  s.add_auto_group("strata.budgets", STRATA_FIELD(strata.budgets), "auto = all three measured, with a margin.");
  s.add("strata.budgets.device", "", STRATA_FIELD(strata.budgets.device), kPositive, "Device memory that may be used.");
  s.add("strata.budgets.host", "", STRATA_FIELD(strata.budgets.host), kPositive, "Host memory that may be used.");
  s.add("strata.budgets.nvme", "", STRATA_FIELD(strata.budgets.nvme), kNotNegative, "Drive space that may be used.");
  s.add_auto_group("strata.placement", STRATA_FIELD(strata.placement), "auto = the plan chooses all three.");
  s.add("strata.placement.param", "", STRATA_FIELD(strata.placement.param), kAny, "Home of the weights.");
  s.add("strata.placement.grad", "", STRATA_FIELD(strata.placement.grad), kAny,
        "Home of the gradients; auto takes nvme only where they fit nowhere else.");
  s.add("strata.placement.optimizer", "", STRATA_FIELD(strata.placement.optimizer), kAny,
        "Home of the optimizer's states and master weights.");
  s.add("strata.placement.shares.param.host", "", STRATA_FIELD(strata.placement.shares.param.host), kRatio,
        "Share of the weights' bytes kept in host memory; with the next one it adds up to 1.");
  s.add("strata.placement.shares.param.nvme", "", STRATA_FIELD(strata.placement.shares.param.nvme), kRatio,
        "Share of the weights' bytes on the drives.");
  s.add("strata.placement.shares.optimizer.host", "", STRATA_FIELD(strata.placement.shares.optimizer.host), kRatio,
        "Share of the optimizer's bytes kept in host memory; with the next one it adds up to 1.");
  s.add("strata.placement.shares.optimizer.nvme", "", STRATA_FIELD(strata.placement.shares.optimizer.nvme), kRatio,
        "Share of the optimizer's bytes on the drives.");
  s.add(
      "strata.placement.shares.optimizer.device", "", STRATA_FIELD(strata.placement.shares.optimizer.device), kRatio,
      "Share of the optimizer's bytes on the device, in whole groups, first ones first; with the two above it adds up "
      "to 1.");
  s.add("strata.optimizer_states.master", "", STRATA_FIELD(strata.optimizer_states.master), kAny,
        "remainder = the 16 bits that a bf16 weight lacks instead of an fp32 copy: exact, 2 bytes a parameter less.");
  s.add("strata.optimizer_states.moments", "", STRATA_FIELD(strata.optimizer_states.moments), kAny,
        "bf16 = rounded stochastically, 8bit = blocks of 256 with a scale; both change the numbers.");
  s.add("strata.nvme.paths", "strata.nvme.path offload_dir", STRATA_FIELD(strata.nvme.paths), kAny,
        "Folders on drives; states are spread over them.");
  s.add("strata.nvme.block_size", "", STRATA_FIELD(strata.nvme.block_size), kPages, "Bytes of one request to a drive.");
  s.add("strata.nvme.queue_depth", "", STRATA_FIELD(strata.nvme.queue_depth), kDepth, "Requests in flight per drive.");
  s.add("strata.nvme.backend", "", STRATA_FIELD(strata.nvme.backend), kAny, "How requests reach the kernel.");
  s.add("strata.nvme.checksums", "", STRATA_FIELD(strata.nvme.checksums), kAny,
        "Examine what is read back from the drives against what was written; costs processor time.");
  s.add("strata.nvme.rated_writes", "strata.nvme.tbw", STRATA_FIELD(strata.nvme.rated_writes), kPositive,
        "Bytes that the drives are rated for (TBW, 600TB say): the log then shows how long they would last.");
  s.add("strata.nvme.wear_limit", "", STRATA_FIELD(strata.nvme.wear_limit), kPositive,
        "Bytes that this run may write to the drives; a run that would write more is refused.");
  s.add("strata.compute", "", STRATA_FIELD(strata.compute), kAny,
        "Type in which the host multiplies matrices; changes the numbers.");
  s.add("strata.loss_chunk", "", STRATA_FIELD(strata.loss_chunk), kAtLeastOne,
        "Tokens whose logits exist at once; changes the last bits of the numbers.");
  s.add("strata.accumulation", "", STRATA_FIELD(strata.accumulation), kAny,
        "Order of several micro-batches: vertical = all of them through a layer before the next, which gathers weights "
        "twice a step; auto = that, where it moves less, fits and changes no bit (with tied embeddings it would).");
  s.add(
      "strata.accumulate_in_fp32", "", STRATA_FIELD(strata.accumulate_in_fp32), kAny,
      "Gradients of several micro-batches are added in fp32; false = in the type of the weights, in half the memory.");
  s.add(
      "strata.recompute", "", STRATA_FIELD(strata.recompute), kAny,
      "Layers whose activations are computed again in backward: all, none, or how many (the first ones); auto = those "
      "that do not fit the device budget.");
  s.add("strata.held_layers", "", STRATA_FIELD(strata.held_layers), kNotNegative,
        "Layers, counted from the loss, whose weights stay gathered from forward to backward; auto = on several ranks "
        "those that the device has room for.");
  s.add(
      "strata.update_site", "", STRATA_FIELD(strata.update_site), kAny,
      "Where updates run: host = on the processor; device = on the device where the states are at home there; streamed "
      "= on the device, other states go there and back; auto = as device, and streamed in part where that was "
      "measured to end sooner. The same bits everywhere.");
  s.add("strata.delay_update", "", STRATA_FIELD(strata.delay_update), kAny,
        "Without clipping and fp16 updates begin during backward, and a gradient that is not finite ends the run; true "
        "= they "
        "wait for all gradients, as with clipping, and such a step is skipped. The same bits either way.");
  s.add("strata.prefetch", "", STRATA_FIELD(strata.prefetch), kNotNegative, "Bytes fetched ahead of their use.");
  s.add("strata.slot_size", "", STRATA_FIELD(strata.slot_size), kPages, "Bytes of one staging slot.");
  s.add("strata.adam_threads", "", STRATA_FIELD(strata.adam_threads), kThreads, "Threads of the optimizer; 0 = auto.");
  s.add("strata.io_threads", "", STRATA_FIELD(strata.io_threads), kThreads,
        "Threads of the threads backend; 0 = auto.");
  s.add("strata.compute_threads", "", STRATA_FIELD(strata.compute_threads), kThreads,
        "Threads of the host's compute; 0 = auto; may change the last bits of fp32 numbers.");
  s.add("strata.ranks_per_node", "", STRATA_FIELD(strata.ranks_per_node), kPositive,
        "Ranks on each machine, for the next five; auto = as many as were started here.");
  s.add("strata.shard_within_node", "", STRATA_FIELD(strata.shard_within_node), kAny,
        "true = the ranks of a node divide the model among them, and every node has all of it (hybrid sharding).");
  s.add("strata.slow_links.weights", "", STRATA_FIELD(strata.slow_links.weights), kAny,
        "int8 = gathered weights travel in half the bytes; changes the numbers, as the next two do.");
  s.add("strata.slow_links.gradients", "", STRATA_FIELD(strata.slow_links.gradients), kAny,
        "int8, int4 = gradients travel in a half or a quarter of the bytes.");
  s.add("strata.slow_links.two_hops", "", STRATA_FIELD(strata.slow_links.two_hops), kAny,
        "true = collectives run inside each node and between nodes by themselves, so that the network carries less.");
  s.add("strata.slow_links.node_partition", "", STRATA_FIELD(strata.slow_links.node_partition), kAny,
        "true = each node keeps a copy of the weights, divided among its ranks, and backward gathers it there.");
  s.add(
      "strata.comm.timeout", "ddp_timeout", STRATA_FIELD(strata.comm.timeout), kPositive,
      "Seconds that a collective may take, the wait for the slowest rank included. A lost rank ends the run within "
      "seconds whatever this is; it is for one that hangs, and half an hour as in torch, since a slow drive or a long "
      "save on one rank is no failure.");
  s.add("strata.comm.join_timeout", "", STRATA_FIELD(strata.comm.join_timeout), kPositive,
        "Seconds that ranks wait for the others to come when a run starts.");
  s.add(
      "strata.comm.interface", "", STRATA_FIELD(strata.comm.interface), kAny,
      "Network interface between machines (eth0, ib0) for Gloo, and for NCCL unless NCCL_SOCKET_IFNAME is set; empty = "
      "GLOO_SOCKET_IFNAME, else the one that leads to MASTER_ADDR; NCCL then looks for one.");
  s.add("strata.trace", "trace", STRATA_FIELD(strata.trace), kAny,
        "File for a Chrome trace of compute, updates and every request to the drives; empty = none.");
  s.add("strata.adversarial_streams", "", STRATA_FIELD(strata.adversarial_streams), kAny, "For tests.").shown =
      Setting::Shown::No;
}

#undef STRATA_FIELD

}  // namespace

std::vector<Setting> run_config_settings() {
  std::vector<Setting> rows;
  add_model_and_data(rows);
  add_batches_and_steps(rows);
  add_optimizer(rows);
  add_output(rows);
  add_strata(rows);
  return rows;
}

std::vector<FixedKey> run_config_fixed_keys() {
  constexpr std::string_view kNoLora = "leave it out: all parameters are trained";
  return {
      {"packing", "sample_packing", "false no off", "set it to false"},
      {"gradient_checkpointing", "", "true yes on",
       "set it to true; strata.recompute: all is the same, auto recomputes only what does not fit"},
      {"deepspeed", "", "", "write its settings into the strata block"},
      {"finetuning_type", "", "full", "use full, with frozen_parameters for what stays as it is"},
      {"unfrozen_parameters", "freeze_trainable_layers freeze_trainable_modules", "",
       "name what stays as it is in frozen_parameters"},
      {"adapter", "", "", kNoLora},
      {"lora_rank", "lora_r", "", kNoLora},
      {"lora_alpha", "", "", kNoLora},
      {"lora_dropout", "", "", kNoLora},
      {"lora_target_modules", "lora_target lora_target_linear", "", kNoLora},
      {"load_in_4bit", "", "false no off", "set it to false"},
      {"load_in_8bit", "", "false no off", "set it to false"},
  };
}

void for_each_word(std::string_view list, const std::function<void(std::string_view)>& visit) {
  while (!list.empty()) {
    const std::size_t blank = std::min(list.find(' '), list.size());
    if (blank > 0) visit(list.substr(0, blank));
    list.remove_prefix(std::min(blank + 1, list.size()));
  }
}

}  // namespace strata::engine
