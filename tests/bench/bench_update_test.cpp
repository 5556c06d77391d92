#include "bench/bench_update.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "bench/fio.h"
#include "bench/update_rig.h"
#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::bench {
namespace {

using nlohmann::json;

constexpr std::uint64_t kNumel = 3 << 20;

UpdateBenchOptions small_run(const test::TempDir& directory) {
  return {.dir = directory.path(),
          .numel = kNumel,
          .states = {"fp32"},
          .cached = {0},
          .slot_bytes = 256 << 10,
          .threads = 2,
          .rounds = 2,
          .with_fio = false,
          .rates = engine::DriveRates{1e9, 1e9, 1e9},
          .idle = std::chrono::seconds(0)};
}

TEST(UpdateBench, MovesEveryByteOfUncachedStatesOnceEachWay) {
  const test::TempDir directory;
  const json result = run_update_bench(small_run(directory));

  const json& row = result.at("rows").at(0);
  EXPECT_EQ(row.at("state_bytes_per_parameter"), 12);
  EXPECT_EQ(row.at("read_bytes"), 12 * kNumel);
  EXPECT_EQ(row.at("written_bytes"), 12 * kNumel);
  EXPECT_EQ(row.at("cached_share"), 0);
}

TEST(UpdateBench, MovesHalfTheBytesWhereHalfIsCached) {
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.cached = {0, 0.5};
  const json result = run_update_bench(options);

  EXPECT_EQ(result.at("rows").at(0).at("bytes_to_first"), 1);
  EXPECT_NEAR(result.at("rows").at(1).at("bytes_to_first").get<double>(), 0.5, 0.01);
  EXPECT_NEAR(result.at("rows").at(1).at("cached_share").get<double>(), 0.5, 0.01);
}

TEST(UpdateBench, MovesAThirdWithTheNarrowestStates) {
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.states = {"fp32", "remainder+8bit"};
  const json result = run_update_bench(options);

  EXPECT_NEAR(result.at("rows").at(1).at("state_bytes_per_parameter").get<double>(), 4.03, 0.005);
  // The scales may stay: of one group they fill a page each, which the next step wants as soon as this one has ended.
  EXPECT_GE(result.at("rows").at(1).at("bytes_to_first").get<double>(), 4.0 / 12);
  EXPECT_LE(result.at("rows").at(1).at("bytes_to_first").get<double>(), 4.04 / 12);
}

TEST(UpdateBench, MovesNothingWhereAllIsCached) {
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.cached = {1};
  options.with_fio = true;  // which has nothing to do then
  const json row = run_update_bench(options).at("rows").at(0);

  EXPECT_EQ(row.at("read_bytes"), 0);
  EXPECT_EQ(row.at("written_bytes"), 0);
  EXPECT_TRUE(row.at("ratio_median").is_null());
  EXPECT_GT(row.at("seconds"), 0);
}

TEST(UpdateBench, ComparesWithFioInTheKeysThatAreDocumented) {
  if (!fio_available()) GTEST_SKIP() << "fio is not on PATH";
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.with_fio = true;
  const json result = run_update_bench(options);

  const json& row = result.at("rows").at(0);
  for (const char* key : {"gib_s", "fio_gib_s", "ratio_median", "update_seconds"}) EXPECT_GT(row.at(key), 0) << key;
  EXPECT_LE(row.at("ratio_interval").at(0), row.at("ratio_median"));
  EXPECT_GE(row.at("ratio_interval").at(1), row.at("ratio_median"));
  EXPECT_EQ(row.at("samples").at("fio").size(), 2U);
  EXPECT_EQ(result.at("drive_rates").at("read"), 1e9);
  EXPECT_NE(format_update_bench(result).find("fp32"), std::string::npos);
}

TEST(UpdateBench, LeavesNothingBehind) {
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.with_fio = true;
  (void)run_update_bench(options);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(UpdateBench, RefusesWhatItCannotDo) {
  const test::TempDir directory;
  UpdateBenchOptions options = small_run(directory);
  options.states = {"fp31"};
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options = small_run(directory);
  options.cached = {1.5};
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options = small_run(directory);
  options.rounds = 0;
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options = small_run(directory);
  options.numel = 0;
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options.numel = std::uint64_t{1} << 60;
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options = small_run(directory);
  options.slot_bytes = 1000;
  EXPECT_THROW(run_update_bench(options), ConfigError);
  options = small_run(directory);
  options.dir = directory.path() / "missing";
  EXPECT_THROW(run_update_bench(options), IoError);
}

TEST(UpdateRig, TakesANumberOfParametersThatFillsNoPage) {
  const test::TempDir directory;
  UpdateRig rig({.folder = directory.path(), .numel = kNumel + 5, .slot_bytes = 256 << 10, .threads = 2});
  const UpdateMeasure measure = rig.step();

  EXPECT_GT(rig.state_bytes(), 12 * kNumel);
  EXPECT_GE(measure.written_bytes, rig.state_bytes());
  EXPECT_GE(measure.seconds, measure.update_seconds);
}

}  // namespace
}  // namespace strata::bench
