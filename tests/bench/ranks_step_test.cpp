#include "bench/ranks_step.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/requested_steps.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"
#include "support/temp_dir.h"
#include "support/watchdog.h"

namespace strata::bench {
namespace {

using nlohmann::json;

StepBenchOptions small_model(const std::filesystem::path& directory) {
  StepBenchOptions options;
  options.dir = directory;
  options.hidden = 128;
  options.layers = 4;
  options.vocab = 512;
  options.tokens = 16;
  options.page_bytes = 8 << 20;
  options.engine.adam_threads = options.engine.compute_threads = 1;
  return options;
}

// What each of two ranks, threads of this process, makes of fn(options, guard).
template <typename Fn>
auto on_two_ranks(const StepBenchOptions& options, Fn fn) {
  const test::Watchdog watchdog("two ranks");
  test::PlainMath math;
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : comm::make_thread_ranks(2, math)) comms.push_back(std::move(comm));
  std::array<decltype(fn(options, Guard())), 2> results;
  test::run_ranks(2, [&](std::size_t rank) {
    StepBenchOptions mine = options;
    mine.engine.comm = comms[rank];
    const Guard guard = [&](const std::function<int()>& body) {
      try {
        return body();
      } catch (...) {
        comms[rank]->abort(std::current_exception());
        throw;
      }
    };
    results[rank] = fn(mine, guard);
  });
  return results;
}

std::array<json, 2> measured(const StepBenchOptions& options) {
  return on_two_ranks(options, [](const StepBenchOptions& mine, const Guard& guard) {
    return run_step_bench(mine, {.rounds = 2, .guard = guard});
  });
}

TEST(RanksStep, CountsWhatThePlanSaysInEveryStage) {
  const test::TempDir directory;
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    StepBenchOptions options = small_model(directory.path());
    options.engine.zero_stage = stage;
    options.engine.micro_batches = 2;
    const json result = measured(options)[0];

    ASSERT_EQ(result.at("per_rank").size(), 2U);
    for (const json& rank : result.at("per_rank")) {
      EXPECT_EQ(rank.at("sent"), result.at("planned").at("sent"));
      EXPECT_GT(rank.at("sent").at("all"), 0);
      EXPECT_GT(rank.at("collective_seconds"), 0);
      EXPECT_EQ(rank.at("states_bytes"), result.at("published").at("states_bytes"));
      for (const char* tier : {"device", "host", "nvme"}) {
        EXPECT_LE(rank.at("held").at(tier), result.at("planned").at("held").at(tier)) << tier;
      }
    }
    EXPECT_EQ(result.at("zero_stage"), stage);
    EXPECT_EQ(result.at("tokens"), 2 * 2 * 16);
  }
}

TEST(RanksStep, SendsWhatIsPublishedWhereEachGroupIsUsedAsThePaperSays) {
  const test::TempDir directory;
  StepBenchOptions options = small_model(directory.path());
  options.engine.zero_stage = 1;
  const json result = measured(options)[0];

  EXPECT_EQ(result.at("per_rank").at(0).at("sent").at("all").get<double>(), result.at("published").at("sent_bytes"));
}

TEST(RanksStep, GivesEveryRankTheSameTimesOfTheSlowest) {
  const test::TempDir directory;
  const std::array<json, 2> results = measured(small_model(directory.path()));

  for (const char* key : {"total_seconds", "compute_seconds", "exposed_seconds", "collective_seconds", "per_rank"}) {
    EXPECT_EQ(results[0].at(key), results[1].at(key)) << key;
  }
  EXPECT_GT(results[0].at("compute_seconds"), 0);
  EXPECT_GE(results[0].at("total_seconds"), results[0].at("step").at("seconds"));
  EXPECT_NE(format_step_bench(results[0]).find("published"), std::string::npos);
}

TEST(RanksStep, RefusesToLookForTokensThatHide) {
  const test::TempDir directory;
  EXPECT_THROW(on_two_ranks(small_model(directory.path()),
                            [](const StepBenchOptions& mine, const Guard& guard) {
                              return run_step_bench(mine, {.rounds = 1, .hide = true, .guard = guard});
                            }),
               ConfigError);
}

TEST(RanksStep, OnRequestEveryRankAnswersWithOneLoss) {
  const test::TempDir directory;
  const auto answers = on_two_ranks(small_model(directory.path()), [](const auto& mine, const Guard& guard) {
    std::istringstream in("step\n");
    std::ostringstream out;
    run_requested_steps(mine, StatesHome::Host, in, out, guard);
    return out.str();
  });

  const auto step = [](const std::string& text) { return json::parse(text.substr(text.find('\n') + 1)); };
  EXPECT_EQ(step(answers[0]).at("loss"), step(answers[1]).at("loss"));
  EXPECT_GT(step(answers[0]).at("sent_bytes"), 0);
}

}  // namespace
}  // namespace strata::bench
