#include "cli/line_relay.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/test_seed.h"

namespace strata::cli {
namespace {

TEST(LineRelay, PutsThePrefixBeforeEachLine) {
  LineRelay relay("[rank 1] ");
  EXPECT_EQ(relay.take("a\nb\n"), "[rank 1] a\n[rank 1] b\n");
}

TEST(LineRelay, KeepsAnUnfinishedLineUntilItsEnd) {
  LineRelay relay("> ");
  EXPECT_EQ(relay.take("a\nhal"), "> a\n");
  EXPECT_EQ(relay.take("f"), "");
  EXPECT_EQ(relay.take("\n"), "> half\n");
  EXPECT_EQ(relay.finish(), "");
}

TEST(LineRelay, EndsTheLastLineItself) {
  LineRelay relay("> ");
  EXPECT_EQ(relay.take("last"), "");
  EXPECT_EQ(relay.finish(), "> last\n");
  EXPECT_EQ(relay.finish(), "");
}

TEST(LineRelay, KeepsEmptyLines) {
  LineRelay relay("> ");
  EXPECT_EQ(relay.take("\n\n"), "> \n> \n");
}

TEST(LineRelay, ShowsWhatATerminalWouldShowOfALineDrawnOver) {
  LineRelay relay("> ");
  EXPECT_EQ(relay.take("10 %\r50 %\r100 %\nnext\r\n"), "> 100 %\n> next\n");
}

TEST(LineRelay, CutsALineWithoutEnd) {
  LineRelay relay("> ");
  std::string out;
  for (int i = 0; i < 40; ++i) out += relay.take(std::string(100'000, 'x'));
  EXPECT_GE(out.size(), 3'000'000U);
  EXPECT_TRUE(out.ends_with("x\n"));
}

TEST(LineRelay, WithoutAPrefixPassesOnEveryByte) {
  const std::uint64_t seed = test::test_seed(7);
  std::mt19937_64 random(seed);
  std::string bytes, out;
  for (int i = 0; i < 10'000; ++i) bytes += "a\n\r\0b"[random() % 5];
  LineRelay relay("");
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = 1 + random() % 7;
    out += relay.take(std::string_view(bytes).substr(at, n));
    at += n;
  }
  EXPECT_EQ(out + relay.finish(), bytes) << "seed " << seed;
}

}  // namespace
}  // namespace strata::cli
