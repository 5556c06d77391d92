// What is written from the table: the resolved configuration, --help and docs/config.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "engine/run_config.h"

namespace strata::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

// Draws configurations that are valid and use every kind of value.
class RandomConfig {
 public:
  explicit RandomConfig(std::uint64_t seed) : generator_(seed) {}

  RunConfig draw() {
    RunConfig c;
    draw_data(c);
    c.output_dir = text() + "x";
    c.overwrite_output_dir = coin();
    c.max_seq_length = count(1);
    c.per_device_train_batch_size = count(1);
    c.per_device_eval_batch_size = count(1);
    c.gradient_accumulation_steps = count(1);
    c.num_train_epochs = real(0.001, 1000);
    c.max_steps = coin() ? -1 : count(1);
    c.learning_rate = real(0, 1) * 1e-4;
    c.weight_decay = real(0, 1);
    c.adam_beta1 = real(0, 1);
    c.adam_beta2 = real(0, 1);
    c.adam_epsilon = real(1e-12, 1e-3);
    c.max_grad_norm = coin() ? 0 : real(0, 10);
    c.lr_scheduler_type = static_cast<LrKind>(count(0) % 4);
    c.warmup_ratio = real(0, 1);
    c.warmup_steps = count(0);
    c.bf16 = coin();
    c.fp16 = !c.bf16 && coin();
    if (c.fp16) c.loss_scale = coin() ? 0 : real(1, 1e9);
    c.min_loss_scale = real(1e-3, 10);
    c.initial_loss_scale = real(10, 1e9);
    c.loss_scale_window = count(1);
    c.logging_steps = count(1);
    c.save_strategy = coin() ? SaveStrategy::No : SaveStrategy::Steps;
    c.save_steps = count(0);
    c.save_total_limit = count(0);
    c.seed = count(0);
    c.report_to = coin() ? ReportTo::None : ReportTo::Jsonl;
    c.sample_prompt = text();
    draw_resume(c.resume_from_checkpoint);
    draw_strata(c.strata);
    if (c.strata.compute == (c.fp16 ? ComputeChoice::Bf16 : ComputeChoice::Fp16)) c.strata.compute = {};
    return c;
  }

 private:
  void draw_data(RunConfig& c) {
    c.model_name_or_path = text();
    for (std::int64_t i = count(0) % 3; i > 0; --i) {
      c.datasets.push_back({.path = text() + "x", .type = coin() ? "auto" : "tokens", .fields = {}});
      if (coin()) c.datasets.back().fields = {{text() + "a", text() + "b"}, {"output", "answer"}};
    }
    if (coin()) {
      c.val_datasets.push_back({.path = text() + "y", .type = "text", .fields = {}});
    } else {
      c.val_size = coin() ? real(0.01, 0.99) : static_cast<double>(count(1));
    }
    c.eval_steps = count(0);
  }

  void draw_resume(ResumeConfig& resume) {
    if (coin()) resume = {ResumeConfig::From::Newest, {}};
    if (coin()) resume = {ResumeConfig::From::Path, text() + "/p"};
  }

  void draw_strata(StrataConfig& s) {
    s.device = coin() ? DeviceChoice::Auto : DeviceChoice::Host;
    if (coin()) s.budgets.device = bytes();
    if (coin()) s.budgets.host = bytes();
    if (coin()) s.budgets.nvme = bytes();
    if (coin()) s.placement.param = static_cast<offload::TierKind>(count(0) % 3);
    if (coin()) s.placement.grad = static_cast<offload::TierKind>(count(0) % 2);
    if (coin()) s.placement.optimizer = static_cast<offload::TierKind>(count(0) % 3);
    if (coin()) s.nvme.paths = {text() + "1", text() + "2"};
    if (coin() && !s.nvme.paths.empty() && !s.placement.param) {
      const double host = real(0, 1);
      s.placement.shares.param = {host, 1 - host};
    }
    if (coin() && !s.nvme.paths.empty() && !s.placement.optimizer) s.placement.shares.optimizer = {0.25, 0.5, 0.25};
    if (coin()) s.nvme.block_size = 4096 * static_cast<std::uint64_t>(count(1));
    if (coin()) s.nvme.queue_depth = 1 + count(0) % 4096;
    s.nvme.checksums = coin();
    if (coin()) s.nvme.rated_writes = bytes();
    if (coin()) s.nvme.wear_limit = bytes();
    s.comm = {real(0.001, 1e6), real(0.001, 1e6), text()};
    if (coin()) s.trace = text();
    s.nvme.backend = static_cast<IoBackendChoice>(count(0) % 3);
    s.optimizer_states.moments = static_cast<MomentEncoding>(count(0) % 3);
    s.compute = static_cast<ComputeChoice>(count(0) % 4);
    s.accumulation = static_cast<AccumulationChoice>(count(0) % 3);
    s.update_site = static_cast<UpdateSiteChoice>(count(0) % 4);
    s.delay_update = coin();
    if (coin()) s.recompute.layers = coin() ? RecomputeChoice::kAll : count(0) % 40;
    s.loss_chunk = count(1);
    if (coin()) s.prefetch = bytes();
    if (coin()) s.slot_size = 4096 * static_cast<std::uint64_t>(count(1));
    s.adam_threads = count(0) % 1024;
    s.io_threads = count(0) % 1024;
    s.compute_threads = count(0) % 1024;
    s.adversarial_streams = coin();
  }

  bool coin() { return std::bernoulli_distribution(0.5)(generator_); }
  double real(double low, double high) { return std::uniform_real_distribution(low, high)(generator_); }
  std::int64_t count(std::int64_t least) {
    // Small and large ones alike.
    const auto bits = std::uniform_int_distribution<int>(1, 40)(generator_);
    return least + std::uniform_int_distribution<std::int64_t>(0, (std::int64_t{1} << bits) - 1)(generator_);
  }
  std::uint64_t bytes() { return static_cast<std::uint64_t>(count(1)); }
  std::string text() {
    static constexpr const char* kPieces[] = {"a",  " ",   ": ",   "#",    "'", "\"", "\\", "\n", "\t",   "{",     "}",
                                              "[",  "]",   "true", "null", "~", "-",  "&",  "*",  "\x01", "\x7f",  "%",
                                              "\r", "010", "é",    "漢",   "😀", "!",  "|",  ">",  "@",    "/x.y/", "="};
    std::string result;
    for (std::int64_t i = std::uniform_int_distribution<std::int64_t>(0, 6)(generator_); i > 0; --i) {
      result += kPieces[std::uniform_int_distribution<std::size_t>(0, std::size(kPieces) - 1)(generator_)];
    }
    return result;
  }

  std::mt19937_64 generator_;
};

TEST(ResolvedConfig, ReadsBackAsItself) {
  constexpr std::uint64_t kSeed = 20251129;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const RunConfig config = RandomConfig(kSeed + i).draw();
    const std::string yaml = to_yaml(config);
    SCOPED_TRACE("seed " + std::to_string(kSeed + i) + "\n" + yaml);

    ASSERT_EQ(parse_run_config(yaml, {.file = "resolved.yaml"}), config);
  }
}

TEST(ResolvedConfig, OfTheDefaultsReadsBackAsTheDefaults) {
  EXPECT_EQ(parse_run_config(to_yaml(RunConfig{}), {}), RunConfig{});
}

TEST(ResolvedConfig, NestsStratasBlock) {
  RunConfig config;
  config.strata.budgets.device = 4096;

  EXPECT_THAT(to_yaml(config), HasSubstr("strata:\n  zero_stage: 3\n  persistence_threshold: 0\n  rank_independent_sums: false\n  device: auto\n  budgets:\n    device: 4096\n"));
  EXPECT_THAT(to_yaml(config), HasSubstr("    wear_limit: auto\n  compute: auto\n"));
}

TEST(ConfigHelp, ListsFlagDefaultAliasesAndChoices) {
  const std::string help = run_config_help();

  EXPECT_THAT(help, HasSubstr("--learning-rate"));
  EXPECT_THAT(help, HasSubstr("(default 5e-05)"));
  EXPECT_THAT(help, HasSubstr("Also: micro_batch_size\n"));
  EXPECT_THAT(help, HasSubstr("--strata.budgets.device"));
}

TEST(ConfigHelp, LinesFitATerminalOf120Columns) {
  std::istringstream lines(run_config_help());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST(ConfigHelp, LeavesOutWhatIsForTests) {
  EXPECT_THAT(run_config_help(), Not(HasSubstr("adversarial")));
}

TEST(ConfigPage, HoldsTheTablesOfTheProgram) {
  std::ifstream file(STRATA_SOURCE_DIR "/docs/config.md");
  std::ostringstream page;
  page << file.rdbuf();

  const std::string tables = run_config_markdown();
  if (page.str().find(tables) == std::string::npos) {
    const std::filesystem::path fresh = std::filesystem::path(testing::TempDir()) / "strata_config_tables.md";
    std::ofstream(fresh) << tables;
    FAIL() << "docs/config.md is out of date; its tables should be those of " << fresh;
  }
}

}  // namespace
}  // namespace strata::engine
