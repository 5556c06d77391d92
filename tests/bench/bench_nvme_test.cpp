#include "bench/bench_nvme.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "bench/fio.h"
#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::bench {
namespace {

using nlohmann::json;

NvmeBenchOptions small_run(const test::TempDir& directory) {
  return {.dirs = {directory.path()}, .bytes = 16 << 20, .rounds = 2, .idle = std::chrono::seconds(0)};
}

void expect_rates_of_the_store(const json& result) {
  for (const char* key : {"read_gib_s", "write_gib_s", "mixed_gib_s", "read_checksum_ratio", "write_checksum_ratio"}) {
    EXPECT_GT(result.at(key).get<double>(), 0) << key;
  }
}

constexpr std::array kFioKeys{"fio_read_gib_s",    "fio_write_gib_s",    "fio_mixed_gib_s",
                              "read_ratio_median", "write_ratio_median", "mixed_ratio_median"};

TEST(NvmeBench, ComparesWithFioInTheKeysThatAreDocumented) {
  if (!fio_available()) GTEST_SKIP() << "fio is not on PATH";
  const test::TempDir directory;
  const json result = run_nvme_bench(small_run(directory));

  expect_rates_of_the_store(result);
  for (const char* key : kFioKeys) EXPECT_GT(result.at(key).get<double>(), 0) << key;
  for (const std::string name : {"read", "write", "mixed"}) {
    const json& interval = result.at(name + "_ratio_interval");
    EXPECT_LE(interval.at(0), result.at(name + "_ratio_median")) << name;
    EXPECT_GE(interval.at(1), result.at(name + "_ratio_median")) << name;
    EXPECT_EQ(result.at("samples").at(name).at("fio").size(), 2U);
  }
  EXPECT_EQ(result.at("rounds"), 2);
  EXPECT_EQ(result.at("block_bytes"), 1 << 20);
  EXPECT_EQ(result.at("depth"), 32);
  EXPECT_TRUE(result.at("direct_io").is_boolean());
  EXPECT_NE(format_nvme_bench(result).find("95 % interval"), std::string::npos);
}

TEST(NvmeBench, LeavesNullWhereFioIsMissing) {
  const test::TempDir directory;
  NvmeBenchOptions options = small_run(directory);
  options.with_fio = false;
  const json result = run_nvme_bench(options);

  expect_rates_of_the_store(result);
  for (const char* key : kFioKeys) EXPECT_TRUE(result.at(key).is_null()) << key;
  EXPECT_TRUE(result.at("read_ratio_interval").is_null());
  EXPECT_NE(format_nvme_bench(result).find("no comparison"), std::string::npos);
}

TEST(NvmeBench, TakesTheBlockAndDepthItIsGiven) {
  const test::TempDir directory;
  NvmeBenchOptions options = small_run(directory);
  options.with_fio = false;
  options.block_bytes = 64 << 10;
  options.queue_depth = 3;
  const json result = run_nvme_bench(options);

  EXPECT_EQ(result.at("block_bytes"), 64 << 10);
  EXPECT_EQ(result.at("depth"), 3);
}

TEST(NvmeBench, UsesSeveralDirectoriesOnBothSides) {
  const test::TempDir first;
  const test::TempDir second;
  NvmeBenchOptions options = small_run(first);
  options.dirs.push_back(second.path());
  options.rounds = 1;
  const json result = run_nvme_bench(options);

  expect_rates_of_the_store(result);
  EXPECT_EQ(result.at("dirs").size(), 2U);
  EXPECT_EQ(result.at("fio_mixed_gib_s").is_null(), !fio_available());
}

TEST(NvmeBench, LeavesNothingBehind) {
  const test::TempDir directory;
  NvmeBenchOptions options = small_run(directory);
  options.rounds = 1;
  run_nvme_bench(options);

  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(NvmeBench, RefusesMoreThanTheDriveHolds) {
  const test::TempDir directory;
  NvmeBenchOptions options = small_run(directory);
  options.bytes = std::uint64_t{1} << 55;
  EXPECT_THROW(run_nvme_bench(options), ConfigError);
}

TEST(NvmeBench, RefusesADirectoryThatIsNotThere) {
  const test::TempDir directory;
  NvmeBenchOptions options = small_run(directory);
  options.dirs = {directory.path() / "missing"};
  EXPECT_THROW(run_nvme_bench(options), IoError);
}

TEST(Fio, TakesAFileNameWithAColon) {
  if (!fio_available()) GTEST_SKIP() << "fio is not on PATH";
  const test::TempDir directory;
  const std::filesystem::path file = directory.path() / "a:b";
  const FioResult result =
      run_fio({.files = {file}, .pattern = "write", .bytes = 8 << 20, .block_bytes = 1 << 20, .queue_depth = 4});

  EXPECT_GT(result.bytes_per_second, 0);
  EXPECT_EQ(std::filesystem::file_size(file), 8U << 20);
}

}  // namespace
}  // namespace strata::bench
