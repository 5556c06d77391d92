#include "core/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata {
namespace {

using namespace std::chrono_literals;
using test::TempDir;

nlohmann::json written(const Trace& trace) {
  const TempDir folder;
  const auto file = folder.path() / "trace.json";
  trace.write(file);
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

TEST(Trace, RowsOfOneNameAreOneRow) {
  Trace trace;
  const auto first = trace.row("compute", Trace::Row::Sequential);
  EXPECT_NE(trace.row("reads", Trace::Row::Overlapping), first);
  EXPECT_EQ(trace.row("compute", Trace::Row::Sequential), first);
}

TEST(Trace, SequentialSpansBecomeCompleteEvents) {
  Trace trace;
  const auto row = trace.row("compute", Trace::Row::Sequential);
  const auto begin = Trace::Clock::now();
  trace.add({row, "layer \"0\"\n", begin, begin + 5ms, 7});
  const nlohmann::json events = written(trace).at("traceEvents");
  const nlohmann::json& event = events.back();
  EXPECT_EQ(event.at("ph"), "X");
  EXPECT_EQ(event.at("name"), "layer \"0\"\n");
  EXPECT_DOUBLE_EQ(event.at("dur"), 5000);
  EXPECT_GE(event.at("ts").get<double>(), 0);
  EXPECT_EQ(event.at("args").at("bytes"), 7);
  EXPECT_EQ(event.at("tid"), row);
}

TEST(Trace, OverlappingSpansBecomePairs) {
  Trace trace;
  const auto row = trace.row("reads", Trace::Row::Overlapping);
  const auto begin = Trace::Clock::now();
  trace.add({row, "a", begin, begin + 3ms, 1});
  trace.add({row, "b", begin + 1ms, begin + 2ms, 1});
  const nlohmann::json events = written(trace).at("traceEvents");
  std::map<int, std::string> phases;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "M") phases[event.at("id")] += event.at("ph").get<std::string>();
  }
  EXPECT_EQ(phases, (std::map<int, std::string>{{0, "be"}, {1, "be"}}));
}

TEST(Trace, KeepsTheFirstSpansAndCountsTheRest) {
  Trace trace(2);
  const auto row = trace.row("compute", Trace::Row::Sequential);
  for (int i = 0; i < 5; ++i) trace.add({row, std::to_string(i), {}, {}, 0});
  EXPECT_EQ(trace.spans().size(), 2U);
  EXPECT_EQ(written(trace).at("otherData").at("spans_left_out"), 3);
}

TEST(Trace, ASpanOfAnUnknownRowIsACallersMistake) {
  Trace trace;
  EXPECT_THROW(trace.add({3, "x", {}, {}, 0}), ContractViolation);
}

TEST(Trace, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(Trace().write("/proc/no-such-folder/trace.json"), IoError);
}

}  // namespace
}  // namespace strata
