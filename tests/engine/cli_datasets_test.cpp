#include "cli/datasets.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::cli {
namespace {

// The tools are shell scripts here: what matters is how they are called and what becomes of their answers.
class DatasetsTest : public testing::Test {
 protected:
  DatasetsTest() {
    ::setenv("STRATA_PYTHON", "/bin/sh", 1);
    ::setenv("STRATA_TOOLS", folder_.path().c_str(), 1);
    config_.model_name_or_path = "the-model";
    config_.max_seq_length = 99;
    config_.datasets = {{"data.jsonl", "alpaca", {}}};
    tool("prepare_data.py", "printf '%s\\n' \"$@\" >> " + calls().string());
  }
  ~DatasetsTest() override {
    ::unsetenv("STRATA_PYTHON");
    ::unsetenv("STRATA_TOOLS");
  }
  std::filesystem::path calls() const { return folder_.path() / "calls"; }
  std::filesystem::path out() const { return folder_.path() / "out"; }
  void tool(const std::string& name, const std::string& script) const {
    std::ofstream(folder_.path() / name) << script << "\n";
  }
  // Arguments of all calls, one a line.
  std::string called() const {
    std::ostringstream text;
    text << std::ifstream(calls()).rdbuf();
    return text.str();
  }

  test::TempDir folder_;
  engine::RunConfig config_;
};

TEST_F(DatasetsTest, CallTheToolWithEveryFile) {
  config_.datasets.push_back({"more.jsonl", "alpaca", {}});
  const PreparedData data = prepare_datasets(config_, out());
  EXPECT_EQ(data.train, out() / "train.tok");
  EXPECT_EQ(data.validation, std::nullopt);
  EXPECT_EQ(called(),
            "--model\nthe-model\n--data\ndata.jsonl\nmore.jsonl\n--type\nauto\n--max-tokens\n99\n"
            "--out\n" +
                (out() / "train.tok").string() + "\n");
}

TEST_F(DatasetsTest, LeaveTheLayoutOfAChatToTheTool) {
  for (const char* type : {"messages", "sharegpt"}) {
    config_.datasets = {{"data.jsonl", type, {}}};
    prepare_datasets(config_, out());
    EXPECT_NE(called().find("--type\nchat\n"), std::string::npos) << called();
    std::filesystem::remove(calls());
  }
}

TEST_F(DatasetsTest, SplitOffAPartForValidation) {
  config_.val_size = 0.25;
  config_.seed = 5;
  const PreparedData data = prepare_datasets(config_, out());
  EXPECT_EQ(data.validation, out() / "validation.tok");
  EXPECT_NE(called().find("--val-fraction\n0.25\n--val-out\n" + (out() / "validation.tok").string() + "\n--seed\n5\n"),
            std::string::npos)
      << called();
}

TEST_F(DatasetsTest, UseTokenFilesAsTheyAre) {
  config_.datasets = {{"train.tok", "tokens", {}}};
  config_.val_datasets = {{"held-out.tok", "tokens", {}}};
  const PreparedData data = prepare_datasets(config_, out());
  EXPECT_EQ(data.train, "train.tok");
  EXPECT_EQ(data.validation, "held-out.tok");
  EXPECT_EQ(called(), "");
}

TEST_F(DatasetsTest, SayWhoseFaultAFailureOfTheToolIs) {
  tool("prepare_data.py", "exit 2");
  EXPECT_THROW(prepare_datasets(config_, out()), ConfigError);
  tool("prepare_data.py", "exit 4");
  EXPECT_THROW(prepare_datasets(config_, out()), DataError);
}

TEST_F(DatasetsTest, RefuseWhatCannotBeCombined) {
  const auto refused = [&](const engine::RunConfig& config) {
    EXPECT_THROW(prepare_datasets(config, out()), ConfigError);
  };
  engine::RunConfig mixed = config_;
  mixed.datasets.push_back({"more.jsonl", "sharegpt", {}});
  refused(mixed);
  engine::RunConfig tokens = config_;
  tokens.datasets.push_back({"more.tok", "alpaca", {}});
  refused(tokens);
  engine::RunConfig split = config_;
  split.datasets = {{"train.tok", "tokens", {}}};
  split.val_size = 0.1;
  refused(split);
  engine::RunConfig both = config_;
  both.val_datasets = {{"held-out.tok", "tokens", {}}};
  both.val_size = 0.1;
  refused(both);
}

TEST_F(DatasetsTest, EncodeAndDecodeThroughTheTokenizer) {
  tool("tokenizer.py", "if [ $1 = encode ]; then echo 5 6 7; else shift 4; echo \"$*\"; fi");
  EXPECT_EQ(encode("the-model", "some text"), (std::vector<std::int64_t>{5, 6, 7}));
  EXPECT_EQ(decode("the-model", {8, 9}), "8 9");
  EXPECT_EQ(decode("the-model", {}), "");
}

}  // namespace
}  // namespace strata::cli
