// Engines whose collectives a device runs, over a fake of NCCL: one that ends quietly without having moved its bytes
// must not reach a loss that is shown, or a file.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>

#include "comm/device_ranks.h"
#include "core/error.h"
#include "engine/tiny_run.h"
#include "support/temp_dir.h"
#include "support/watchdog.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using std::chrono_literals::operator""ms;

constexpr int kSteps = 2;

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

class DeviceRanksOfAnEngine : public ::testing::TestWithParam<int> {
 protected:
  DeviceRanksOfAnEngine() { test::write_tiny_model(folder_.path() / "model"); }

  // What came of a run of two ranks.
  struct Outcome {
    std::vector<double> losses[2];
    std::map<std::string, std::string> exported;  // nothing, where it was not
    int failed = 0;
  };
  Outcome run(test::DeviceRanks& job) {
    Outcome outcome;
    std::atomic<int> failed = 0;
    const auto comms = job.make();
    const fs::path exported = folder_.path() / "exported";
    fs::remove_all(exported);
    test::run_ranks(2, [&](std::size_t rank) {
      EngineConfig config = test::tiny_engine(folder_.path() / "model");
      config.zero_stage = GetParam();
      config.persistence_threshold = 0;
      config.comm = comms[rank];
      try {
        const std::unique_ptr<Engine> engine = Engine::create(config);
        for (int step = 0; step < kSteps; ++step) {
          outcome.losses[rank].push_back(test::train_tiny(*engine, 1)[0].loss);
        }
        engine->export_model(exported);
      } catch (const CommError& error) {
        ++failed;
        comms[rank]->abort(std::make_exception_ptr(error));
      }
    });
    outcome.failed = failed;
    if (fs::exists(exported)) outcome.exported = files_in(exported);
    return outcome;
  }

  const test::Watchdog watchdog_{"engines over a fake of NCCL"};
  const test::TempDir folder_;
};

TEST_P(DeviceRanksOfAnEngine, AQuietFailureReachesNeitherALossNorAFile) {
  test::DeviceRanks sound(2);
  const Outcome expected = run(sound);
  ASSERT_EQ(expected.failed, 0);
  ASSERT_FALSE(expected.exported.empty());
  const std::size_t collectives = sound.nccl->count("all", 1, "all_gather") + sound.nccl->count("all", 1, "exchange");
  ASSERT_GT(collectives, 10U);

  for (std::size_t nth = 1; nth <= collectives; ++nth) {
    SCOPED_TRACE("collective " + std::to_string(nth) + " of " + std::to_string(collectives));
    test::DeviceRanks job(2);
    job.nccl->queue_before_anything_fails();
    job.nccl->fail("all", 1, nth, test::FakeNccl::Failure::TimeOut);

    const Outcome outcome = run(job);

    EXPECT_EQ(job.nccl->failures_so_far(), 1U);
    EXPECT_GE(outcome.failed, 1);
    for (const int rank : {0, 1}) {
      const std::vector<double>& losses = outcome.losses[rank];
      for (std::size_t step = 0; step < losses.size(); ++step) EXPECT_EQ(losses[step], expected.losses[rank][step]);
    }
    if (!outcome.exported.empty()) {
      EXPECT_EQ(outcome.exported == expected.exported, true) << "files with wrong bytes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, DeviceRanksOfAnEngine, ::testing::Values(1, 3));

}  // namespace
}  // namespace strata::engine
