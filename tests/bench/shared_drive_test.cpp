#include "bench/shared_drive.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "bench/rank_process.h"
#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::bench {
namespace {

using nlohmann::json;

TEST(SharedDriveBench, MeasuresAllSidesInTheKeysThatAreDocumented) {
  const test::TempDir directory;
  const json result = run_shared_drive_bench(
      {.dir = directory.path(), .processes = 3, .bytes = 16 << 20, .seconds = 0.1, .queue_depth = 4, .rounds = 2});

  for (const char* name : {"write", "read", "mixed"}) {
    const json& row = result.at(name);
    for (const char* key : {"one_gib_s", "apart_gib_s", "shared_gib_s"}) EXPECT_GT(row.at(key), 0) << name << key;
    for (const char* side : {"apart", "shared"}) {
      EXPECT_LE(row.at(std::string(side) + "_slowest_gib_s"), row.at(std::string(side) + "_gib_s"));
    }
    for (const std::string key : {"total", "slowest"}) {
      EXPECT_LE(row.at(key + "_interval").at(0), row.at(key + "_ratio"));
      EXPECT_GE(row.at(key + "_interval").at(1), row.at(key + "_ratio"));
    }
  }
  for (const char* key : {"one_ms", "apart_ms", "shared_ms", "latency_ratio"}) {
    EXPECT_GT(result.at("demand").at(key), 0) << key;
  }
  EXPECT_GT(result.at("turns_ratio"), 0);
  EXPECT_NE(format_shared_drive_bench(result).find("3 processes"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(SharedDriveBench, RefusesWhatCannotBeMeasured) {
  const test::TempDir directory;
  EXPECT_THROW(run_shared_drive_bench({.dir = directory.path(), .processes = 1}), ConfigError);
  EXPECT_THROW(run_shared_drive_bench({.dir = directory.path(), .rounds = 0}), ConfigError);
  EXPECT_THROW(run_shared_drive_bench({.dir = directory.path(), .bytes = 1}), ConfigError);
  EXPECT_THROW(run_shared_drive_bench({.dir = directory.path(), .bytes = std::uint64_t{1} << 50}), ConfigError);
  EXPECT_THROW(run_shared_drive_bench({.dir = directory.path() / "none"}), IoError);
}

TEST(RankProcess, SaysSoWhenItFails) {
  RankProcess process([]() -> RankProcess::Work { throw Error("the drive is gone"); });
  EXPECT_THROW((void)process.result(), Error);
}

TEST(RankProcess, DoesWhatItIsTold) {
  RankProcess process([]() -> RankProcess::Work {
    return [](const RankTask& task) { return RankResult{.bytes = static_cast<std::uint64_t>(task.pattern) + 1}; };
  });
  (void)process.result();
  process.start({.pattern = 6});
  EXPECT_EQ(process.result().bytes, 7u);
}

}  // namespace
}  // namespace strata::bench
