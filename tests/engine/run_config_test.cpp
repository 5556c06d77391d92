#include "engine/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace strata::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

RunConfig from_file(const std::string& text) {
  return parse_run_config(text, {.file = "run.yaml"});
}

RunConfig from_flags(std::vector<std::string> flags) {
  return load_run_config({.flags = std::move(flags)});
}

// The message of the ConfigError, or "" where there is none.
std::string refusal(const std::string& text, RunConfigSource source = {}) {
  source.file = "run.yaml";
  try {
    parse_run_config(text, source);
  } catch (const ConfigError& failure) {
    return failure.what();
  }
  return "";
}

std::string refusal_of_flags(std::vector<std::string> flags) {
  return refusal("", {.flags = std::move(flags)});
}

TEST(RunConfig, EmptyFileAndNoFlagsGiveTheDefaults) {
  EXPECT_EQ(from_file(""), RunConfig{});
  EXPECT_EQ(from_file("# only a comment\n"), RunConfig{});
  EXPECT_EQ(from_flags({}), RunConfig{});
}

TEST(RunConfig, EveryPartOfATypicalFileArrives) {
  const RunConfig config = from_file(R"(
base_model: /models/smol
datasets:
  - path: a.jsonl
    type: alpaca
    split: train
    fields: {instruction: question, output: answer}
  - b.txt
output_dir: out
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1.5
learning_rate: 2e-5
lr_scheduler: cosine
warmup_ratio: 0.03
bf16: no
resume_from_checkpoint: true
report_to: [none]
strata:
  device: host
  budgets: {device: 512MiB, host: 1.5GiB, nvme: auto}
  placement: {param: nvme, grad: host, optimizer: nvme}
  nvme: {paths: [/a, /b], block_size: 1MiB, queue_depth: 8, backend: threads}
  compute: fp32
)");

  ASSERT_EQ(config.datasets.size(), 2u);
  EXPECT_EQ(config.model_name_or_path, "/models/smol");
  EXPECT_EQ(config.datasets[0].type, "alpaca");
  EXPECT_EQ(config.datasets[0].fields.at("output"), "answer");
  EXPECT_EQ(config.datasets[1], (DatasetConfig{.path = "b.txt", .type = "auto", .fields = {}}));
  EXPECT_EQ(config.max_seq_length, 512);
  EXPECT_EQ(config.per_device_train_batch_size, 2);
  EXPECT_EQ(config.num_train_epochs, 1.5);
  EXPECT_EQ(config.learning_rate, 2e-5);
  EXPECT_EQ(config.lr_scheduler_type, LrKind::Cosine);
  EXPECT_FALSE(config.bf16);
  EXPECT_EQ(config.resume_from_checkpoint.from, ResumeConfig::From::Newest);
  EXPECT_EQ(config.report_to, ReportTo::None);
  EXPECT_EQ(config.strata.device, DeviceChoice::Host);
  EXPECT_EQ(config.strata.budgets.device, 512u << 20);
  EXPECT_EQ(config.strata.budgets.host, 3u << 29);
  EXPECT_EQ(config.strata.budgets.nvme, std::nullopt);
  EXPECT_EQ(config.strata.placement.grad, offload::TierKind::Host);
  EXPECT_EQ(config.strata.nvme.paths, (std::vector<std::filesystem::path>{"/a", "/b"}));
  EXPECT_EQ(config.strata.nvme.queue_depth, 8);
  EXPECT_EQ(config.strata.nvme.backend, IoBackendChoice::Threads);
  EXPECT_EQ(config.strata.compute, ComputeChoice::Fp32);
}

TEST(RunConfig, JsonIsAccepted) {
  const RunConfig config =
      from_file("{\n\t\"max_steps\": 3,\n\t\"bf16\": false,\n\t\"sample_prompt\": \"a\\n\\u00e9\\\"\"\n}\n");

  EXPECT_EQ(config.max_steps, 3);
  EXPECT_FALSE(config.bf16);
  EXPECT_EQ(config.sample_prompt, "a\n\xc3\xa9\"");
}

TEST(RunConfig, NullLeavesTheDefault) {
  EXPECT_EQ(from_file("max_steps: null\nseed:\nlearning_rate: ~\nstrata:\n"), RunConfig{});
}

TEST(RunConfigFlags, OverrideTheFile) {
  const RunConfig config =
      parse_run_config("learning_rate: 1\nmax_steps: 5\n", {.file = "run.yaml", .flags = {"--learning-rate", "2"}});

  EXPECT_EQ(config.learning_rate, 2);
  EXPECT_EQ(config.max_steps, 5);
}

TEST(RunConfigFlags, AreWrittenWithDashesUnderscoresOrEquals) {
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--learning-rate", "2e-5"}, {"--learning_rate", "2e-5"}, {"--learning-rate=2e-5"}, {"--lr=2e-5"}}) {
    EXPECT_EQ(from_flags(flags).learning_rate, 2e-5) << flags.front();
  }
}

TEST(RunConfigFlags, DotsReachNestedKeys) {
  const RunConfig config = from_flags({"--strata.budgets.device", "512MiB", "--strata.loss-chunk=64"});

  EXPECT_EQ(config.strata.budgets.device, 512u << 20);
  EXPECT_EQ(config.strata.loss_chunk, 64);
}

TEST(RunConfigFlags, ListsAndMapsAreWrittenInFlowStyle) {
  const RunConfig config =
      from_flags({"--datasets", "[{path: a, type: text}, b]", "--strata.placement", "{param: nvme, optimizer: nvme}",
                  "--strata.nvme.paths", "/x,/y", "--val-datasets", "v.jsonl"});

  EXPECT_EQ(config.datasets.size(), 2u);
  EXPECT_EQ(config.datasets[0].type, "text");
  EXPECT_EQ(config.strata.placement.param, offload::TierKind::Nvme);
  EXPECT_EQ(config.strata.nvme.paths.size(), 2u);
  EXPECT_EQ(config.val_datasets.at(0).path, "v.jsonl");
}

TEST(RunConfigFlags, FrozenParametersAreAListOfNames) {
  const std::vector<std::string> names{"model.embed_tokens", "model.layers.0."};
  EXPECT_EQ(from_flags({"--frozen-parameters", "[model.embed_tokens, model.layers.0.]"}).frozen_parameters, names);
  EXPECT_EQ(from_flags({"--frozen_parameters=model.embed_tokens,model.layers.0."}).frozen_parameters, names);
  const RunConfig config = from_file("frozen_parameters: [model.embed_tokens, model.layers.0.]\n");
  EXPECT_EQ(config.frozen_parameters, names);
  EXPECT_EQ(from_file(to_yaml(config)), config);
  EXPECT_THAT(refusal("frozen_parameters: [a, a]\n"), HasSubstr("'a' is given twice"));
  EXPECT_THAT(refusal("freeze_trainable_layers: 2\n"), HasSubstr("in frozen_parameters"));
}

TEST(RunConfigFlags, DataNamesOneFile) {
  EXPECT_EQ(from_flags({"--data", "a,b.jsonl"}).datasets.at(0).path, "a,b.jsonl");
}

TEST(RunConfigFlags, BooleanWithoutAValueIsTrue) {
  const RunConfig config = from_flags({"--overwrite-output-dir", "--resume-from-checkpoint", "--max-steps", "1"});

  EXPECT_TRUE(config.overwrite_output_dir);
  EXPECT_EQ(config.resume_from_checkpoint.from, ResumeConfig::From::Newest);
  EXPECT_EQ(config.max_steps, 1);
}

TEST(RunConfigFlags, TextStaysAsTyped) {
  EXPECT_EQ(from_flags({"--sample-prompt", "[x]: {y"}).sample_prompt, "[x]: {y");
  EXPECT_EQ(from_flags({"--sample-prompt=--no"}).sample_prompt, "--no");
  EXPECT_EQ(from_flags({"--model", "010"}).model_name_or_path, "010");
}

TEST(RunConfigFlags, GroupSetToAutoClearsItsMembers) {
  const RunConfig config = parse_run_config("strata: {placement: {param: nvme}, budgets: {host: 1GiB}}",
                                            {.flags = {"--strata.placement", "auto", "--strata.budgets=auto"}});

  EXPECT_EQ(config.strata, StrataConfig{});
}

TEST(RunConfigFlags, MistakesAreNamed) {
  EXPECT_THAT(refusal_of_flags({"--max-steps"}), HasSubstr("--max-steps: a value is missing"));
  EXPECT_THAT(refusal_of_flags({"--max-steps", "--bf16"}), HasSubstr("--max-steps: a value is missing"));
  EXPECT_THAT(refusal_of_flags({"run.yaml"}), HasSubstr("unexpected argument 'run.yaml'"));
  EXPECT_THAT(refusal_of_flags({"--"}), HasSubstr("unexpected argument '--'"));
  EXPECT_THAT(refusal_of_flags({"--datasets", "[a"}), HasSubstr("--datasets: not YAML"));
  EXPECT_THAT(refusal_of_flags({"--strata.nvme", "fast"}), HasSubstr("'strata.nvme' is a group of keys"));
  EXPECT_THAT(refusal_of_flags({"--max-steps="}), HasSubstr("'' is not a whole number"));
}

// US-01
TEST(RunConfigNames, UnknownKeyIsRefusedWithPlaceAndNearestName) {
  EXPECT_THAT(refusal("seed: 1\nleraning_rate: 1\n"),
              HasSubstr("run.yaml:2: unknown key 'leraning_rate'; did you mean 'learning_rate'?"));
  EXPECT_THAT(refusal("offlod_dir: x\n"), HasSubstr("did you mean 'offload_dir'?"));
  EXPECT_THAT(refusal("strata:\n  budget: {host: 1}\n"),
              HasSubstr("run.yaml:2: unknown key 'strata.budget'; did you mean 'strata.budgets'?"));
  EXPECT_THAT(refusal("budgets: {host: 1}\n"), HasSubstr("did you mean 'strata.budgets'?"));
  EXPECT_THAT(refusal("datasets: [{path: a, tpye: text}]\n"), HasSubstr("did you mean 'type'?"));
  EXPECT_THAT(refusal_of_flags({"--leraning-rate", "1"}),
              HasSubstr("--leraning-rate: unknown key 'leraning_rate'; did you mean 'learning_rate'?"));
}

TEST(RunConfigNames, UnknownKeyFarFromAllPointsToHelp) {
  EXPECT_THAT(refusal("xyzzy_plugh_frotz: 1\n"), HasSubstr("unknown key 'xyzzy_plugh_frotz'; strata train --help"));
}

TEST(RunConfigNames, HiddenOptionIsNeverSuggested) {
  EXPECT_THAT(refusal("strata: {adversarial_stream: true}\n"), Not(HasSubstr("adversarial_streams")));
}

TEST(RunConfigNames, KeyGivenTwiceIsRefusedWithBothPlaces) {
  EXPECT_THAT(refusal("seed: 1\nmax_steps: 2\nseed: 1\n"),
              HasSubstr("run.yaml:3: 'seed' is given twice (before at run.yaml:1)"));
  EXPECT_THAT(refusal("model: a\nbase_model: b\n"), HasSubstr("'base_model' is given twice"));
  EXPECT_THAT(refusal("strata: {device: host}\nseed: 1\nstrata: {device: auto}\n"),
              HasSubstr("'strata' is given twice"));
  EXPECT_THAT(refusal("datasets: [{path: a, path: b}]\n"), HasSubstr("'path' is given twice"));
  EXPECT_THAT(refusal("{\"seed\": 1, \"seed\": 2}"), HasSubstr("'seed' is given twice"));
  EXPECT_THAT(refusal_of_flags({"--lr", "1", "--learning-rate", "1"}),
              HasSubstr("'learning_rate' is given twice (before at --lr)"));
}

TEST(RunConfigNumbers, AreReadFromTextInEitherQuoting) {
  for (const char* text : {"2e-5", "\"2e-5\"", "' 2e-5 '", "0.00002", "+2E-5", ".00002"}) {
    EXPECT_EQ(from_file(std::string("learning_rate: ") + text).learning_rate, 2e-5) << text;
  }
}

// US-04
TEST(RunConfigNumbers, WholeFloatsAreIntegersAndFractionsAreNot) {
  EXPECT_EQ(from_file("max_steps: 5e8").max_steps, 500000000);
  EXPECT_EQ(from_file("max_steps: 4.0").max_steps, 4);
  EXPECT_EQ(from_file("seed: 9223372036854775807").seed, 9223372036854775807);
  EXPECT_THAT(refusal("max_steps: 1.5"), HasSubstr("run.yaml:1: max_steps: '1.5' must be a whole number"));
  EXPECT_THAT(refusal("max_steps: 1e30"), HasSubstr("'1e30' is too large"));
  EXPECT_THAT(refusal("max_steps: 9223372036854775808"), HasSubstr("is too large"));
}

TEST(RunConfigNumbers, LeadingZeroIsNotOctal) {
  EXPECT_EQ(from_file("max_steps: 010").max_steps, 10);
}

TEST(RunConfigNumbers, AnythingElseIsRefusedAndNeverZero) {
  for (const char* text : {"abc", "1x", "0x10", "1_000", "1,000", "''", "nan", ".nan", "inf", "-.inf", "true", "[1]",
                           "{a: 1}", "1e999", "+-1", "--1"}) {
    EXPECT_THAT(refusal(std::string("learning_rate: ") + text), HasSubstr("run.yaml:1: learning_rate: ")) << text;
    EXPECT_THAT(refusal(std::string("max_steps: ") + text), HasSubstr("run.yaml:1: max_steps: ")) << text;
  }
}

TEST(RunConfigBooleans, OnlySixWordsAreAccepted) {
  for (const char* text : {"true", "yes", "on", "True", "'true'"}) {
    EXPECT_TRUE(from_file(std::string("overwrite_output_dir: ") + text).overwrite_output_dir) << text;
  }
  for (const char* text : {"false", "no", "off", "NO"}) {
    EXPECT_FALSE(from_file(std::string("bf16: ") + text).bf16) << text;
  }
  for (const char* text : {"1", "0", "y", "maybe", "''", "[true]"}) {
    EXPECT_NE(refusal(std::string("bf16: ") + text), "") << text;
  }
}

TEST(RunConfigBytes, SizesAreReadByTheRulesOfParseBytes) {
  EXPECT_EQ(from_file("strata: {budgets: {host: 64M}}").strata.budgets.host, 64000000u);
  EXPECT_EQ(from_file("strata: {budgets: {host: 64MiB}}").strata.budgets.host, 64u << 20);
  EXPECT_EQ(from_file("strata: {budgets: {host: 5e8}}").strata.budgets.host, 500000000u);
  for (const char* text : {"-1", "1.5", "x", "0", "''", "1e30"}) {
    EXPECT_THAT(refusal("strata: {budgets: {host: " + std::string(text) + "}}"),
                HasSubstr("run.yaml:1: strata.budgets.host: "))
        << text;
  }
}

TEST(RunConfigResume, TakesTrueFalseOrAPath) {
  using From = ResumeConfig::From;
  EXPECT_EQ(from_file("resume_from_checkpoint: false").resume_from_checkpoint.from, From::Start);
  EXPECT_EQ(from_file("resume_from_checkpoint: yes").resume_from_checkpoint.from, From::Newest);
  EXPECT_EQ(from_file("resume_from_checkpoint: out/checkpoint-5").resume_from_checkpoint,
            (ResumeConfig{From::Path, "out/checkpoint-5"}));
  EXPECT_THAT(refusal("resume_from_checkpoint: ''"), HasSubstr("empty"));
}

TEST(RunConfigRanges, ValuesOutOfRangeAreRefusedWithTheirPlace) {
  EXPECT_THAT(refusal("seed: 1\nadam_beta1: 1"), HasSubstr("run.yaml:2: adam_beta1: 1 must be 0 or more and below 1"));
  EXPECT_THAT(refusal_of_flags({"--adam-beta2", "-0.1"}), StartsWith("--adam-beta2: adam_beta2: -0.1 must be"));
  for (const char* line : {"max_seq_length: 0",
                           "per_device_train_batch_size: 0",
                           "per_device_train_batch_size: -1",
                           "per_device_eval_batch_size: 0",
                           "gradient_accumulation_steps: 0",
                           "num_train_epochs: 0",
                           "max_steps: 0",
                           "max_steps: -2",
                           "learning_rate: -1",
                           "weight_decay: -0.1",
                           "adam_epsilon: 0",
                           "max_grad_norm: -1",
                           "warmup_ratio: 1.1",
                           "warmup_steps: -1",
                           "logging_steps: 0",
                           "save_steps: -1",
                           "save_total_limit: -1",
                           "eval_steps: -1",
                           "seed: -1",
                           "val_size: 1.5",
                           "val_size: -1",
                           "strata: {zero_stage: 4}",
                           "strata: {nvme: {block_size: 1000}}",
                           "strata: {nvme: {queue_depth: 0}}",
                           "strata: {loss_chunk: 0}",
                           "strata: {slot_size: 0}",
                           "strata: {adam_threads: -1}",
                           "global_batch_size: -7"}) {
    EXPECT_THAT(refusal(line), HasSubstr(" must be ")) << line;
  }
}

TEST(RunConfigRanges, EdgesAreAccepted) {
  for (const char* line : {"learning_rate: 0", "adam_beta1: 0", "max_grad_norm: 0", "warmup_ratio: 1", "max_steps: -1",
                           "max_steps: 1", "val_size: 0.5", "val_size: 100", "save_steps: 0", "weight_decay: 0"}) {
    EXPECT_EQ(refusal(line), "") << line;
  }
}

// US-06
TEST(RunConfigRanges, WarmupLongerThanTheRunIsAccepted) {
  const RunConfig config = from_file("max_steps: 3\nwarmup_steps: 10\nlearning_rate: 1\n");

  EXPECT_EQ(config.lr_schedule(3).for_update(3), 0.2);
}

TEST(RunConfigChoices, OtherNamesAreRefusedWithTheChoices) {
  EXPECT_THAT(refusal("lr_scheduler_type: linaer"),
              HasSubstr("'linaer' is not one of linear | cosine | constant | constant_with_warmup"));
  EXPECT_THAT(refusal("lr_scheduler_type: polynomial"), HasSubstr("not supported yet: 'polynomial'; use linear | "));
  EXPECT_THAT(refusal("strata: {device: rocm}"), HasSubstr("'rocm' is not one of auto | host | cuda"));
  EXPECT_THAT(refusal("report_to: [jsonl, wandb]"), HasSubstr("not supported yet: 'wandb'"));
  EXPECT_THAT(refusal("strata: {placement: {param: disk}}"), HasSubstr("'disk' is not one of device | host | nvme"));
  EXPECT_THAT(refusal("datasets: [{path: a, type: csv}]"), HasSubstr("'csv' is not one of auto | alpaca"));
}

TEST(RunConfigNotYet, WhatOtherTrainersDoIsRefusedClearly) {
  for (const char* line :
       {"packing: true", "sample_packing: on", "gradient_checkpointing: false", "deepspeed: ds.json", "lora_r: 8",
        "adapter: lora", "finetuning_type: lora", "lora_target_modules: [q]", "optim: adafactor", "optim: adamw_8bit",
        "strata: {optimizer_states: {moments: fp8}}", "datasets: [{path: a, split: test}]"}) {
    EXPECT_THAT(refusal(line), HasSubstr("not supported yet")) << line;
  }
}

TEST(RunConfigNotYet, TheirHarmlessValuesAreAccepted) {
  EXPECT_EQ(from_file("fp16: false\npacking: False\ngradient_checkpointing: true\ndeepspeed: null\n"
                      "finetuning_type: full\noptim: adamw_torch\nlora_r:\n"
                      "strata: {optimizer_states: {master: fp32, moments: fp32}}\n"),
            RunConfig{});
}

// US-02
TEST(RunConfigBatch, ProductThatDiffersShowsEveryFactor) {
  EXPECT_THAT(refusal("global_batch_size: 7\nmicro_batch_size: 2\n", {.world_size = 2}),
              HasSubstr("run.yaml:1: global_batch_size 7 is not per_device_train_batch_size 2 x "
                        "gradient_accumulation_steps 1 x 2 ranks"));
  EXPECT_EQ(refusal("global_batch_size: 12\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\n", {.world_size = 2}),
            "");
}

TEST(RunConfigData, ContradictionsAreRefused) {
  EXPECT_THAT(refusal("val_size: 0.1\nval_datasets: v.jsonl\n"), HasSubstr("keep one"));
  EXPECT_THAT(refusal("eval_steps: 5\n"), HasSubstr("eval_steps needs val_datasets or val_size"));
  EXPECT_THAT(refusal("datasets: [{type: text}]\n"), HasSubstr("a data set needs a path"));
  EXPECT_THAT(refusal("datasets: [[a]]\n"), HasSubstr("datasets: "));
  EXPECT_THAT(refusal("strata: {nvme: {paths: [/a, /a]}}\n"), HasSubstr("'/a' is given twice"));
}

TEST(RunConfigOptimizer, IsChosenByTheNamesThatUsersKnow) {
  EXPECT_EQ(from_file("optim: adamw_torch_fused").optim, OptimizerKind::AdamW);
  EXPECT_EQ(from_file("optimizer: lion").optim, OptimizerKind::Lion);
  const RunConfig config = from_file("strata: {optimizer_states: {master: remainder, moments: 8bit}}");
  EXPECT_EQ(config.strata.optimizer_states.master, MasterEncoding::Remainder);
  EXPECT_EQ(config.strata.optimizer_states.moments, MomentEncoding::Block8);
}

TEST(RunConfigOptimizer, ARemainderNeedsBf16Weights) {
  EXPECT_THAT(refusal("bf16: false\nstrata: {optimizer_states: {master: remainder}}"),
              HasSubstr("remainder completes a bf16 weight"));
}

TEST(RunConfigTypes, Fp16TurnsOffTheDefaultOfBf16) {
  const RunConfig config = from_file("fp16: true\n");
  EXPECT_TRUE(config.fp16);
  EXPECT_FALSE(config.bf16);
  EXPECT_EQ(from_file(to_yaml(config)), config);
  EXPECT_TRUE(from_file("fp16: true\nbf16: false\n").fp16);
  EXPECT_TRUE(from_file("fp16: false\n").bf16);
  EXPECT_FALSE(from_flags({"--fp16"}).bf16);
}

TEST(RunConfigTypes, Fp16AndBf16ExcludeEachOther) {
  EXPECT_THAT(refusal("bf16: true\nfp16: true\n"),
              HasSubstr("run.yaml:2: fp16: true and bf16: true exclude each other (bf16 is at run.yaml:1); keep one"));
  EXPECT_THAT(refusal("bf16: true\n", {.flags = {"--fp16"}}), HasSubstr("exclude each other"));
}

TEST(RunConfigTypes, Fp16HasNoRemainder) {
  EXPECT_THAT(refusal("fp16: true\nstrata: {optimizer_states: {master: remainder}}"),
              HasSubstr("remainder completes a bf16 weight; with fp16: true there is none"));
}

TEST(RunConfigTypes, ProductsHaveTheTypeOfTheWeightsOrFp32) {
  EXPECT_EQ(from_file("fp16: true\nstrata: {compute: fp16}").strata.compute, ComputeChoice::Fp16);
  EXPECT_EQ(from_file("fp16: true\nstrata: {compute: fp32}").strata.compute, ComputeChoice::Fp32);
  EXPECT_THAT(refusal("fp16: true\nstrata: {compute: bf16}"), HasSubstr("strata.compute: bf16 is not the type of"));
  EXPECT_THAT(refusal("strata: {compute: fp16}"), HasSubstr("strata.compute: fp16 is not the type of"));
}

TEST(RunConfigTypes, TheLossScaleIsDynamicUnlessItIsGiven) {
  const RunConfig config = from_file(
      "fp16: true\nloss_scale: 128\ninit_scale: 1024\nmin_loss_scale: 0.25\n"
      "growth_interval: 100\n");
  EXPECT_EQ(config.loss_scale, 128);
  EXPECT_EQ(config.initial_loss_scale, 1024);
  EXPECT_EQ(config.min_loss_scale, 0.25);
  EXPECT_EQ(config.loss_scale_window, 100);
  EXPECT_EQ(from_file("fp16: true").loss_scale, 0);
}

TEST(RunConfigTypes, ImpossibleLossScalesAreRefused) {
  EXPECT_THAT(refusal("loss_scale: 128"), HasSubstr("loss_scale needs fp16: true"));
  EXPECT_THAT(refusal("fp16: true\nloss_scale: -1"), HasSubstr("must be 0 (dynamic)"));
  EXPECT_THAT(refusal("fp16: true\nloss_scale: 1e30"), HasSubstr("at most 2^64"));
  EXPECT_THAT(refusal("fp16: true\nmin_loss_scale: 0"), HasSubstr("must be greater than 0"));
  EXPECT_THAT(refusal("fp16: true\nloss_scale_window: 0"), HasSubstr("must be 1 or more"));
  EXPECT_THAT(refusal("fp16: true\ninitial_loss_scale: 2\nmin_loss_scale: 4"),
              HasSubstr("initial_loss_scale 2 is below min_loss_scale 4"));
}

TEST(RunConfigShares, SplitAClassOverHostMemoryAndDrives) {
  const RunConfig config =
      from_file("strata: {nvme: {paths: /n}, placement: {shares: {optimizer: {host: 0.4, nvme: 0.6}}}}");
  EXPECT_EQ(config.strata.placement.shares.optimizer.host, 0.4);
  EXPECT_EQ(config.strata.placement.shares.optimizer.nvme, 0.6);
  EXPECT_FALSE(config.strata.placement.shares.param.given());
}

TEST(RunConfigShares, OfTheOptimizerMayLieOnTheDeviceToo) {
  const RunConfig config =
      from_file("strata: {nvme: {paths: /n}, placement: {shares: {optimizer: {device: 0.25, host: 0.25, nvme: 0.5}}}}");
  EXPECT_EQ(config.strata.placement.shares.optimizer.device, 0.25);
  EXPECT_THAT(refusal("strata: {placement: {shares: {optimizer: {device: 0.5, host: 0.2}}}}"),
              HasSubstr("strata.placement.shares.optimizer: device 0.5, host 0.2 and nvme 0 add up to 0.7, not to 1"));
  EXPECT_THAT(refusal("strata: {placement: {shares: {param: {device: 0.5, host: 0.5}}}}"),
              HasSubstr("strata.placement.shares.param.device"));
}

TEST(RunConfigUpdates, RunOnASiteByName) {
  EXPECT_EQ(from_file("seed: 1").strata.update_site, UpdateSiteChoice::Auto);
  EXPECT_EQ(from_file("strata: {update_site: streamed}").strata.update_site, UpdateSiteChoice::Streamed);
  EXPECT_THAT(refusal("strata: {update_site: gpu}"), HasSubstr("is not one of auto | host | device | streamed"));
}

TEST(RunConfigShares, ContradictionsAreRefused) {
  EXPECT_THAT(refusal("strata: {nvme: {paths: /n}, placement: {shares: {optimizer: {host: 0.4}}}}"),
              HasSubstr("strata.placement.shares.optimizer: host 0.4 and nvme 0 add up to 0.4, not to 1"));
  EXPECT_THAT(refusal("strata: {nvme: {paths: /n}, placement: {param: host, shares: {param: {host: 0.5, nvme: 0.5}}}}"),
              HasSubstr("strata.placement.param gives one home and strata.placement.shares.param two; keep one"));
  EXPECT_THAT(refusal("strata: {placement: {shares: {param: {nvme: 1}}}}"), HasSubstr("needs strata.nvme.paths"));
  EXPECT_THAT(refusal("strata: {placement: {shares: {param: {host: 1.5}}}}"), HasSubstr("must be between 0 and 1"));
}

TEST(RunConfigRequired, MissingKeysAreNamed) {
  const RunConfigSource source{.required = {"model_name_or_path", "datasets"}};

  EXPECT_THAT(refusal("seed: 1\n", source),
              AllOf(HasSubstr("model_name_or_path is missing"), HasSubstr("datasets is missing")));
  EXPECT_EQ(refusal("model: m\ndata: d\n", source), "");
  EXPECT_THAT(refusal("model: ''\ndata: []\n", source),
              AllOf(HasSubstr("model_name_or_path is missing"), HasSubstr("datasets is missing")));
}

TEST(RunConfigErrors, AllProblemsComeInOneList) {
  const std::string message = refusal("leraning_rate: 1\nmax_steps: x\nadam_beta1: 2\npacking: true\n",
                                      {.flags = {"--sede", "1", "--bf16", "7"}, .required = {"datasets"}});

  EXPECT_THAT(message, AllOf(StartsWith("the configuration has 7 problems:\n  run.yaml:1: "), HasSubstr("run.yaml:2: "),
                             HasSubstr("run.yaml:3: "), HasSubstr("run.yaml:4: "), HasSubstr("--sede: "),
                             HasSubstr("--bf16: "), HasSubstr("datasets is missing")));
}

TEST(RunConfigErrors, WhatIsNoMapOrNoYamlIsRefused) {
  EXPECT_THAT(refusal("- a\n- b\n"), HasSubstr("run.yaml: must be a map"));
  EXPECT_THAT(refusal("a: [1, 2\nb: 3\n"), HasSubstr("run.yaml:2: not YAML: "));
  EXPECT_THAT(refusal("seed: 1\n---\nseed: 2\n"), HasSubstr("2 documents"));
  EXPECT_THAT(refusal("[1]: 2\n"), HasSubstr("a key must be a text"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("not YAML"));
}

TEST(RunConfigFile, MissingFileAndFolderAreRefusedWithTheReason) {
  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      load_run_config({.file = path});
    } catch (const ConfigError& failure) {
      return failure.what();
    }
    return "";
  };

  EXPECT_THAT(message("/nowhere/run.yaml"),
              AllOf(HasSubstr("/nowhere/run.yaml"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message("/tmp"), HasSubstr("Is a directory"));
}

TEST(RunConfigFile, IsReadFromDisk) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "strata_run_config_test.yaml";
  std::ofstream(path) << "seed: 7\n";

  EXPECT_EQ(load_run_config({.file = path}).seed, 7);

  std::ofstream(path, std::ios::trunc).close();
  EXPECT_EQ(load_run_config({.file = path}), RunConfig{});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace strata::engine
