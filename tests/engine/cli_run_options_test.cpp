#include "cli/run_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::cli {
namespace {

TEST(RunOptions, TakeTheFileInBothSpellingsAndFlagsAboveIt) {
  const test::TempDir folder;
  const std::string file = folder.path() / "run.yaml";
  std::ofstream(file) << "model_name_or_path: from-file\nmax_steps: 5\n";
  for (const Arguments& spelling : {Arguments{"--config", file}, Arguments{"--config=" + file}}) {
    Arguments arguments = spelling;
    arguments.insert(arguments.end(), {"--max-steps", "7", "--json"});
    const RunOptions options = read_run_options(arguments, {"model_name_or_path"});
    EXPECT_EQ(options.config.model_name_or_path, "from-file");
    EXPECT_EQ(options.config.max_steps, 7);
    EXPECT_EQ(options.output, RunOptions::Output::Json);
    EXPECT_FALSE(options.help);
  }
}

TEST(RunOptions, AskForHelpWithoutReadingAnything) {
  EXPECT_TRUE(read_run_options({"--config", "/not/there", "--help"}, {"model_name_or_path"}).help);
  EXPECT_TRUE(read_run_options({"-h"}, {"model_name_or_path"}).help);
}

TEST(RunOptions, RefuseAConfigTwiceOrWithoutItsFile) {
  EXPECT_THROW(read_run_options({"--config", "a", "--config=b"}, {}), ConfigError);
  EXPECT_THROW(read_run_options({"--config"}, {}), ConfigError);
}

TEST(RunOptions, CountTheRanksInTheGlobalBatch) {
  const Arguments arguments{"--model", "m", "--per-device-train-batch-size", "2", "--global-batch-size", "6"};
  EXPECT_EQ(read_run_options(arguments, {}, 3).config.global_batch_size, 6);
  EXPECT_THROW(read_run_options(arguments, {}), ConfigError);
}

TEST(RunOptions, RefuseWhenARequiredKeyIsAbsent) {
  EXPECT_THROW(read_run_options({"--max-steps", "7"}, {"model_name_or_path"}), ConfigError);
}

}  // namespace
}  // namespace strata::cli
