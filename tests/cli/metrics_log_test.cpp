#include "cli/metrics_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/error.h"

namespace strata::cli {
namespace {

using nlohmann::json;

class MetricsLogTest : public testing::Test {
 protected:
  MetricsLogTest() { std::filesystem::create_directories(folder_); }
  ~MetricsLogTest() override { std::filesystem::remove_all(folder_); }

  std::string contents() const {
    std::ifstream file(folder_ / "metrics.jsonl");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  static engine::StepReport report() {
    engine::StepReport r;
    r.step = 3;
    r.epoch = 0.5;
    r.loss = 1.25;
    r.learning_rate = 2e-5;
    r.grad_norm = 0.75;
    r.tokens = 1000;
    r.step_seconds = 2;
    r.seconds = {.forward = 0.5, .backward = 0.75, .optimizer = 0.25, .stall = 0.5};
    r.bytes = {.nvme_read = 1, .nvme_written = 2, .h2d = 3, .d2h = 4};
    r.peak_bytes = {.device = 5, .host = 6, .nvme = 7};
    r.rss_bytes = 8;
    r.skipped_steps = 9;
    return r;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("strata_metrics_log_test_" + std::to_string(getpid()));
};

TEST_F(MetricsLogTest, AStepIsOneLineWithTheDocumentedKeys) {
  MetricsLog log(folder_);

  log.append(report());

  EXPECT_EQ(contents(), R"({"step":3,"epoch":0.5,"loss":1.25,"learning_rate":2e-05,"grad_norm":0.75,"tokens":1000,)"
                        R"("tokens_per_second":500.0,"step_seconds":2.0,)"
                        R"("seconds":{"forward":0.5,"backward":0.75,"optimizer":0.25,"stall":0.5},)"
                        R"("bytes":{"nvme_read":1,"nvme_written":2,"h2d":3,"d2h":4},)"
                        R"("peak_bytes":{"device":5,"host":6,"nvme":7},"rss_bytes":8,"skipped_steps":9})"
                        "\n");
}

TEST_F(MetricsLogTest, WhatTheEngineDoesNotKnowIsLeftOutAndWhatItKnowsIsWritten) {
  engine::StepReport r = report();
  EXPECT_FALSE(json::parse(to_json_line(r)).contains("ideal_seconds"));
  EXPECT_FALSE(json::parse(to_json_line(r)).contains("loss_scale"));
  r.loss_scale = 65536;
  r.seconds.stall_nvme = 0.375;
  r.ideal_seconds = 1;
  r.tflops = 0.5;
  r.binding_link = "nvme read";

  const json line = json::parse(to_json_line(r));

  EXPECT_EQ(line.at("loss_scale"), 65536);
  EXPECT_EQ(line.at("ideal_seconds"), 1);
  EXPECT_EQ(line.at("ideal_fraction"), 0.5);
  EXPECT_EQ(line.at("tflops"), 0.5);
  EXPECT_EQ(line.at("seconds").at("stall_nvme"), 0.375);
  EXPECT_EQ(line.at("binding_link"), "nvme read");
}

TEST_F(MetricsLogTest, AnEvaluationHasKeysOfItsOwn) {
  const json line =
      json::parse(to_json_line(engine::EvalReport{.step = 4, .epoch = 1, .loss = 2, .tokens = 7, .seconds = 3}));

  EXPECT_EQ(line.at("step"), 4);
  EXPECT_EQ(line.at("eval_loss"), 2);
  EXPECT_EQ(line.at("eval_perplexity"), std::exp(2.0));
  EXPECT_EQ(line.at("eval_tokens"), 7);
  EXPECT_FALSE(line.contains("loss"));
}

TEST_F(MetricsLogTest, ValuesThatAreNotFiniteAreNull) {
  engine::StepReport r = report();
  r.loss = std::numeric_limits<double>::quiet_NaN();
  r.grad_norm = std::numeric_limits<double>::infinity();

  const json line = json::parse(to_json_line(r));

  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("grad_norm").is_null());
}

TEST_F(MetricsLogTest, EachLineIsInTheFileBeforeTheNextOne) {
  MetricsLog log(folder_);
  for (int lines = 1; lines <= 3; ++lines) {
    log.append(report());
    const std::string text = contents();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), lines);
  }
}

TEST_F(MetricsLogTest, AnEarlierRunsLinesAreKept) {
  std::ofstream(folder_ / "metrics.jsonl") << "{\"step\":1}\n";

  MetricsLog(folder_).append(report());

  EXPECT_EQ(contents(), "{\"step\":1}\n" + to_json_line(report()) + "\n");
}

TEST_F(MetricsLogTest, AfterATornLineANewOneIsStarted) {
  std::ofstream(folder_ / "metrics.jsonl") << "{\"step\":1}\n{\"st";

  MetricsLog(folder_).append(report());

  EXPECT_EQ(contents(), "{\"step\":1}\n{\"st\n" + to_json_line(report()) + "\n");
}

TEST_F(MetricsLogTest, AMissingFolderIsAnIoErrorWithThePath) {
  try {
    MetricsLog log(folder_ / "missing");
    FAIL() << "no exception";
  } catch (const IoError& failure) {
    EXPECT_EQ(failure.failure().errno_value, ENOENT);
    EXPECT_EQ(failure.failure().path, (folder_ / "missing/metrics.jsonl").string());
  }
}

TEST_F(MetricsLogTest, AFullDriveIsAnIoError) {
  std::filesystem::create_symlink("/dev/full", folder_ / "metrics.jsonl");
  MetricsLog log(folder_);

  try {
    log.append(report());
    FAIL() << "no exception";
  } catch (const IoError& failure) {
    EXPECT_EQ(failure.failure().errno_value, ENOSPC);
  }
}

}  // namespace
}  // namespace strata::cli
