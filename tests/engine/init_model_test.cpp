#include "engine/init_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "core/error.h"
#include "engine/tiny_run.h"
#include "hf/safetensors.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;

class InitModel : public testing::Test {
 protected:
  InitModel() { test::write_tiny_model(folder_.path() / "source"); }
  fs::path config() const { return folder_.path() / "source" / "config.json"; }
  fs::path out() const { return folder_.path() / "out"; }
  // Names in the folder of the test that are neither source nor result.
  std::set<std::string> strays() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
      names.insert(entry.path().filename());
    names.erase("source");
    names.erase("out");
    return names;
  }

  test::TempDir folder_;
};

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(InitModel, InFp32GivesTheBitsOfAnEngineWithDrawnWeights) {
  init_model(config(), out(), {.seed = 7, .dtype = DType::F32});
  EngineConfig drawn = test::tiny_engine(folder_.path() / "source");
  drawn.seed = 7;
  EngineConfig read = test::tiny_engine(out());
  read.random_weights = false;
  EXPECT_EQ(test::tiny_parameter_bits(*Engine::create(read)), test::tiny_parameter_bits(*Engine::create(drawn)));
}

TEST_F(InitModel, CountsParametersAndBytes) {
  const InitSummary made = init_model(config(), out());
  EXPECT_EQ(made.parameters, Engine::create(test::tiny_engine(folder_.path() / "source"))->parameters());
  EXPECT_EQ(made.bytes, 2 * made.parameters);
}

TEST_F(InitModel, HoldsTheSameBytesForTheSameSeedAndOthersForAnother) {
  for (const auto& [name, seed] : {std::pair{"a", 1}, {"b", 1}, {"c", 2}}) {
    init_model(config(), folder_.path() / name, {.seed = static_cast<std::uint64_t>(seed)});
  }
  const auto weights = [&](const char* name) { return contents(folder_.path() / name / "model.safetensors"); };
  EXPECT_FALSE(weights("a").empty());
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));
}

TEST_F(InitModel, SplitsIntoShardsOfTheSizeAskedFor) {
  init_model(config(), out(), {.max_shard_bytes = 60'000});
  EXPECT_TRUE(fs::exists(out() / "model.safetensors.index.json"));
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(out());
  std::map<fs::path, std::uint64_t> bytes;
  std::map<fs::path, int> tensors;
  for (const auto& [name, tensor] : catalog.tensors()) {
    bytes[tensor.file] += tensor.bytes;
    ++tensors[tensor.file];
  }
  EXPECT_GT(bytes.size(), 3u);
  for (const auto& [file, sum] : bytes) EXPECT_TRUE(sum <= 60'000 || tensors[file] == 1) << file << ": " << sum;
}

TEST_F(InitModel, FillsAnEmptyFolderAndRefusesOneThatHoldsSomething) {
  fs::create_directories(out());
  init_model(config(), out());
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
  const auto before = fs::last_write_time(out() / "model.safetensors");
  EXPECT_THROW(init_model(config(), out(), {.seed = 2}), ConfigError);
  EXPECT_EQ(fs::last_write_time(out() / "model.safetensors"), before);
  EXPECT_THROW(init_model(config(), out() / "config.json"), ConfigError);  // a file
  EXPECT_EQ(strays(), std::set<std::string>{});
}

TEST_F(InitModel, FollowsALinkAndASlashAtTheEnd) {
  fs::create_directories(folder_.path() / "elsewhere");
  fs::create_directory_symlink("elsewhere", folder_.path() / "link");
  init_model(config(), folder_.path() / "link" / "");
  EXPECT_TRUE(fs::is_symlink(folder_.path() / "link"));
  EXPECT_TRUE(fs::exists(folder_.path() / "elsewhere" / "model.safetensors"));
  EXPECT_EQ(strays(), (std::set<std::string>{"elsewhere", "link"}));
}

TEST_F(InitModel, SaysWhatItNeedsWhenTheDiskIsTooSmall) {
  test::write_tiny_model(folder_.path() / "source", R"(, "tie_word_embeddings": true)");
  std::string text = contents(config());
  text.replace(text.find("257"), 3, "2147483647");                               // about 275 GB of embeddings
  text.replace(text.find("\"hidden_size\": 64"), 17, "\"hidden_size\": 65536");  // and 1024 times that
  std::ofstream(config()) << text;
  try {
    init_model(config(), out());
    FAIL() << "accepted";
  } catch (const OutOfBudget& error) {
    EXPECT_GT(error.need_bytes(), std::uint64_t{1} << 47);
    EXPECT_LT(error.have_bytes(), error.need_bytes());
    EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(out()));
  EXPECT_EQ(strays(), std::set<std::string>{});
}

TEST_F(InitModel, LeavesNothingWhenItIsStopped) {
  InitOptions options;
  std::uint64_t stopped_at = 0;
  options.on_progress = [&](std::uint64_t done, std::uint64_t all) {
    stopped_at = done;
    if (done > all / 2) throw Cancelled("enough");
  };
  EXPECT_THROW(init_model(config(), out(), options), Cancelled);
  EXPECT_GT(stopped_at, 0u);
  EXPECT_FALSE(fs::exists(out()));
  EXPECT_EQ(strays(), std::set<std::string>{});
}

TEST_F(InitModel, NamesAConfigThatIsAbsentOrUnknown) {
  EXPECT_THROW(init_model(folder_.path() / "none.json", out()), DataError);
  std::ofstream(folder_.path() / "source" / "bert.json") << R"({"model_type": "bert"})";
  EXPECT_THROW(init_model(folder_.path() / "source" / "bert.json", out()), DataError);
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace strata::engine
