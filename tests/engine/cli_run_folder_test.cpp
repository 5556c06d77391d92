#include "cli/run_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

engine::RunConfig config_in(const fs::path& folder) {
  engine::RunConfig config;
  config.output_dir = folder / "out";
  config.datasets = {{(folder / "data.tok").string(), "auto", {}}};
  return config;
}

TEST(RunStart, ComesThroughItsTextUnchanged) {
  const RunStart nothing{std::nullopt, {"a b\n\"c\".tok", std::nullopt}};
  const RunStart all{fs::path("out/checkpoint-3"), {"train.tok", fs::path("ü.tok")}};
  EXPECT_EQ(run_start_from(to_text(nothing)), nothing);
  EXPECT_EQ(run_start_from(to_text(all)), all);
}

TEST(RunStart, MakesTheFolderAndWritesTheConfiguration) {
  const test::TempDir folder;
  const engine::RunConfig config = config_in(folder.path());

  const RunStart start = start_run(config);

  EXPECT_EQ(start.data.train, folder.path() / "data.tok");
  EXPECT_FALSE(start.data.validation.has_value());
  EXPECT_FALSE(start.resume.has_value());
  EXPECT_EQ(engine::load_run_config({.file = config.output_dir / "config.yaml"}), config);
}

TEST(RunStart, RefusesAFolderWithCheckpointsOrSetsThemAside) {
  const test::TempDir folder;
  engine::RunConfig config = config_in(folder.path());
  fs::create_directories(config.output_dir / "checkpoint-3");
  EXPECT_THROW(start_run(config), ConfigError);

  config.overwrite_output_dir = true;
  start_run(config);

  EXPECT_FALSE(fs::exists(config.output_dir / "checkpoint-3"));
  EXPECT_TRUE(fs::exists(config.output_dir / "superseded-checkpoint-3"));
}

TEST(RunStart, NamesAFolderThatCannotBeMade) {
  const test::TempDir folder;
  engine::RunConfig config = config_in(folder.path());
  std::ofstream(folder.path() / "file") << "x";
  config.output_dir = folder.path() / "file" / "out";
  try {
    start_run(config);
    FAIL() << "made";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().path, config.output_dir.string());
  }
}

}  // namespace
}  // namespace strata::cli
