#include "core/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace strata {
namespace {

using namespace literals;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Bytes, LiteralsAreBinary) {
  EXPECT_EQ(3_KiB, 3072U);
  EXPECT_EQ(2_MiB, 2097152U);
  EXPECT_EQ(20_GiB, 21474836480U);
}

TEST(Bytes, AlignUpGivesTheSmallestMultiple) {
  EXPECT_EQ(align_up(0, 4096), 0U);
  EXPECT_EQ(align_up(1, 4096), 4096U);
  EXPECT_EQ(align_up(4096, 4096), 4096U);
  EXPECT_EQ(align_up(4097, 4096), 8192U);
  EXPECT_EQ(align_up(10, 3), 12U);
}

TEST(Bytes, CeilDivRoundsUp) {
  EXPECT_EQ(ceil_div(0, 4), 0U);
  EXPECT_EQ(ceil_div(1, 4), 1U);
  EXPECT_EQ(ceil_div(8, 4), 2U);
  EXPECT_EQ(ceil_div(9, 4), 3U);
}

TEST(Bytes, FormatUsesTheLargestBinaryUnit) {
  const std::vector<std::pair<std::uint64_t, std::string>> table = {
      {0, "0 B"},
      {12, "12 B"},
      {1023, "1023 B"},
      {1_KiB, "1.00 KiB"},
      {640_MiB, "640.00 MiB"},
      {1_GiB + 512_MiB, "1.50 GiB"},
      {3 * 1024_GiB, "3.00 TiB"},
      {kMax, "16.00 EiB"},
  };
  for (const auto& [bytes, text] : table) EXPECT_EQ(format_bytes(bytes), text);
}

TEST(Bytes, FormatNeverPrints1024OfAUnit) {
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(1_GiB - 1), "1.00 GiB");
}

TEST(Bytes, ParseReadsEverySuffixExactly) {
  const std::vector<std::pair<std::string, std::uint64_t>> table = {
      {"0", 0},
      {"4096", 4096},
      {"12 B", 12},
      {"7B", 7},
      {"3K", 3'000},
      {"3KB", 3'000},
      {"3KiB", 3'072},
      {"64M", 64'000'000},
      {"64MB", 64'000'000},
      {"64MiB", 64_MiB},
      {"2G", 2'000'000'000},
      {"1.5 GB", 1'500'000'000},
      {"20GiB", 20_GiB},
      {"1.5  GiB", 1536_MiB},
      {"2T", 2'000'000'000'000},
      {"2TB", 2'000'000'000'000},
      {"2TiB", 2048_GiB},
      {"5e8", 500'000'000},
      {"5E+8", 500'000'000},
      {"1.25e2", 125},
      {"2500e-2", 25},
      {"0e99", 0},
      {"0.0", 0},
      {"1.0", 1},
      {"0.1GB", 100'000'000},  // not exact in binary floating point
      {"1.1TB", 1'100'000'000'000},
      {"0.0009765625KiB", 1},
      {"18446744073709551615", kMax},
  };
  for (const auto& [text, bytes] : table) {
    SCOPED_TRACE(text);
    EXPECT_EQ(parse_bytes(text), bytes);
  }
}

TEST(Bytes, ParseRefusesWhatItCannotReadExactly) {
  for (const std::string text : {"",
                                 " ",
                                 "GiB",
                                 "-1",
                                 "-1GiB",
                                 "+1",
                                 ".5GiB",
                                 "5.",
                                 "5.GiB",
                                 "1,5GB",
                                 "1.5",
                                 "0.1KiB",
                                 "1e",
                                 "1eGiB",
                                 "1e+-5",
                                 "1e--5",
                                 "1e100",
                                 "1e-1",
                                 "20gib",
                                 "20Gib",
                                 "20 Gi B",
                                 "20GiBB",
                                 "20PiB",
                                 " 20GiB",
                                 "20GiB ",
                                 "4096 ",
                                 "20\tGiB",
                                 "0x10",
                                 "inf",
                                 "nan",
                                 "1e3.5",
                                 "1 2",
                                 "1..2",
                                 "18446744073709551616",
                                 "16777216TiB",
                                 "1e20",
                                 "99999999999999999999999999"}) {
    SCOPED_TRACE("'" + text + "'");
    EXPECT_THROW(parse_bytes(text), ConfigError);
  }
}

TEST(Bytes, ParseErrorNamesTheTextAndShowsAGoodOne) {
  try {
    parse_bytes("20 gigs");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("'20 gigs'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("20GiB"), std::string::npos);
  }
}

TEST(Bytes, ParseReadsWhatFormatPrintsForWholeUnits) {
  for (const std::uint64_t bytes : {12_KiB, 5_MiB, 7_GiB, std::uint64_t{100}}) {
    EXPECT_EQ(parse_bytes(format_bytes(bytes)), bytes);
  }
}

}  // namespace
}  // namespace strata
