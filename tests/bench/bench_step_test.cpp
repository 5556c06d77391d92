#include "bench/bench_step.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "bench/requested_steps.h"
#include "bench/step_model.h"
#include "bench/uncached_traffic.h"
#include "core/error.h"
#include "engine/from_run_config.h"
#include "support/temp_dir.h"

namespace strata::bench {
namespace {

using nlohmann::json;

StepBenchOptions small_model(const test::TempDir& directory) {
  StepBenchOptions options;
  options.dir = directory.path();
  options.hidden = 256;
  options.layers = 6;
  options.vocab = 512;
  options.tokens = 32;
  options.page_bytes = 8 << 20;
  return options;
}

engine::EngineConfig small_run(const test::TempDir& directory, const std::string& yaml) {
  StepBenchOptions options = small_model(directory);
  options.positions = 64;
  const ModelFolder folder(options);
  std::filesystem::create_directory(directory.path() / "model");
  std::filesystem::copy_file(folder.path() / "config.json", directory.path() / "model" / "config.json");
  return engine::engine_config(
      engine::parse_run_config("model_name_or_path: " + (directory.path() / "model").string() + "\n" + yaml, {}));
}

TEST(StepBench, MeasuresTheModelOfItsOptionsInTheKeysThatAreDocumented) {
  const test::TempDir directory;
  const json result = run_step_bench(small_model(directory), {.rounds = 2});

  for (const char* key : {"total_seconds", "compute_seconds", "peak_rss_bytes", "ratio", "ratio_to_compute",
                          "ideal_seconds", "optimum_seconds", "ratio_to_optimum"}) {
    EXPECT_GT(result.at(key).get<double>(), 0) << key;
  }
  EXPECT_EQ(result.at("bits_equal"), true);
  EXPECT_EQ(result.at("tokens"), 32);
  EXPECT_TRUE(result.at("exposed_seconds").is_number());
  EXPECT_TRUE(result.at("t_hide").is_null());
  EXPECT_EQ(result.at("memory").at("nvme_read_bytes"), 0);
  EXPECT_GT(result.at("step").at("nvme_read_bytes"), 0);
  // 12 bytes of states, a weight that the update made and forward found, and once more for backward.
  EXPECT_LT(result.at("cached_share").get<double>(), 0.25);
  EXPECT_NE(format_step_bench(result).find("cached share"), std::string::npos);
}

TEST(StepBench, TakesModelBatchStatesAndHomesFromARunConfiguration) {
  const test::TempDir directory;
  const engine::EngineConfig run = small_run(directory,
                                             "max_seq_length: 16\nper_device_train_batch_size: 3\n"
                                             "gradient_accumulation_steps: 2\nstrata:\n"
                                             "  budgets: {device: 256MiB, host: 128MiB, nvme: 1GiB}\n"
                                             "  placement: {param: host, grad: host, optimizer: nvme}\n"
                                             "  optimizer_states: {master: remainder, moments: 8bit}\n"
                                             "  recompute: 2\n"
                                             "  nvme: {paths: [" +
                                                 directory.path().string() + "]}\n");
  const json result = run_step_bench(run, {.rounds = 1});

  EXPECT_EQ(result.at("tokens"), 96);
  EXPECT_EQ(result.at("recomputed_layers"), 2);
  EXPECT_EQ(result.at("bits_equal"), true);
  const auto parameters = result.at("parameters").get<double>();
  const json& uncached = result.at("uncached_bytes");
  EXPECT_NEAR(uncached.at("read").get<double>() / parameters, 4.03, 0.05);
  EXPECT_EQ(uncached.at("read"), uncached.at("written"));
  // So much host memory keeps all of it.
  EXPECT_GT(result.at("cached_share").get<double>(), 0.9);
}

TEST(StepBench, MeasuresARunThatHasNoDrive) {
  const test::TempDir directory;
  const engine::EngineConfig run =
      small_run(directory,
                "max_seq_length: 16\nper_device_train_batch_size: 1\nstrata:\n"
                "  budgets: {device: 256MiB, host: 256MiB}\n  placement: {param: host, grad: host, optimizer: host}\n");
  const json result = run_step_bench(run, {.rounds = 1});

  EXPECT_GT(result.at("total_seconds"), 0);
  for (const char* key : {"cached_share", "drive_rates", "ideal_seconds", "in_flight_during_compute"}) {
    EXPECT_TRUE(result.at(key).is_null()) << key;
  }
  EXPECT_FALSE(format_step_bench(result).empty());
}

TEST(StepBench, LooksForTheTokensThatHide) {
  const test::TempDir directory;
  const json hide = run_step_bench(small_model(directory), {.rounds = 1, .hide = true}).at("t_hide");

  EXPECT_GT(hide.at("tokens"), 0);
  EXPECT_GE(hide.at("points").size(), 2U);
  EXPECT_EQ(hide.at("points").at(0).at("tokens"), 32);
}

TEST(StepBench, RefusesWhatItCannotMeasure) {
  const test::TempDir directory;
  EXPECT_THROW(run_step_bench(small_model(directory), {.rounds = 0}), ConfigError);
  StepBenchOptions options = small_model(directory);
  options.hidden = 100;
  EXPECT_THROW(run_step_bench(options, {.rounds = 1}), ConfigError);
  const engine::EngineConfig tight =
      small_run(directory, "max_seq_length: 16\nstrata:\n  budgets: {device: 1MiB, host: 1MiB}\n");
  EXPECT_THROW(run_step_bench(tight, {.rounds = 1}), OutOfBudget);
}

// The law of traffic, in bytes a parameter: read s + 4, or s + 2 with an fp32 master under the next forward; written s
// +
// 2. The tied embedding is gathered once more: for the head and for its lookup.
TEST(UncachedTraffic, FollowsTheEncodingAndTheTimeOfTheUpdate) {
  const test::TempDir directory;
  const StepBenchOptions options = small_model(directory);
  const ModelFolder folder(options);
  engine::EngineConfig config = nvme_config(options, folder.path());
  const auto per_parameter = [](const engine::EngineConfig& of) {
    const std::unique_ptr<engine::Engine> engine = engine::Engine::create(of);
    const DriveTraffic traffic = uncached_traffic(*engine);
    const auto parameters = static_cast<double>(engine->parameters());
    return std::array{static_cast<double>(traffic.read) / parameters,
                      static_cast<double>(traffic.written) / parameters};
  };

  EXPECT_NEAR(per_parameter(config)[0], 14, 0.1);
  EXPECT_NEAR(per_parameter(config)[1], 14, 0.1);
  config.adamw.max_grad_norm = 0;  // during backward
  EXPECT_NEAR(per_parameter(config)[0], 16, 0.1);
  config.overlap_update = false;
  EXPECT_NEAR(per_parameter(config)[0], 16, 0.1);
  config = nvme_config(options, folder.path());
  config.optimizer = {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8};
  config.host_budget = 128 << 20;
  EXPECT_NEAR(per_parameter(config)[0], 8.03, 0.1);
  EXPECT_NEAR(per_parameter(config)[1], 6.03, 0.1);
  config.overlap_update = false;
  EXPECT_NEAR(per_parameter(config)[0], 10.03, 0.1);
}

TEST(RequestedSteps, AnswersEachLineAndSaysWhatItRecomputes) {
  const test::TempDir directory;
  StepBenchOptions options = small_model(directory);
  options.engine.recomputed_layers = engine::RecomputeChoice::kAll;
  std::istringstream in("step\nstep\n");
  std::ostringstream out;
  run_requested_steps(options, StatesHome::Nvme, in, out);

  std::istringstream lines(out.str());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(json::parse(line).at("recomputed_layers"), 6);
  EXPECT_GT(json::parse(line).at("uncached_read_bytes"), 0);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_GT(json::parse(line).at("seconds"), 0);
  }
  EXPECT_FALSE(std::getline(lines, line));
}

}  // namespace
}  // namespace strata::bench
