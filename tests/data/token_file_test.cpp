#include "data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/error.h"
#include "data/token_bytes.h"

namespace strata::data {
namespace {

using test::TemporaryTokenFile;
using test::TokenFileFields;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<test::SampleBytes> kSamples = {{{5, 6, 7}, {0, 1, 1}}, {{9, 300}, {0, 1}}};

std::string refusal(const std::string& bytes) {
  const TemporaryTokenFile file(bytes);
  try {
    TokenFile::open(file.path());
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenFile, ReadsTheExampleOfTheSpecification) {
  std::istringstream hex(
      "53 54 52 41 54 4f 4b 31 01 00 00 00 2c 01 00 00 02 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 "
      "03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 "
      "00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 05 00 00 00 06 00 00 00 "
      "07 00 00 00 09 00 00 00 2c 01 00 00 00 01 01 00 01 9f 12 35 46 40 e3 ea fc");
  std::string bytes;
  for (unsigned value = 0; hex >> std::hex >> value;) bytes += static_cast<char>(value);
  const TemporaryTokenFile path(bytes);

  const TokenFile file = TokenFile::open(path.path());

  EXPECT_EQ(file.samples(), 2u);
  EXPECT_EQ(file.tokens(), 5u);
  EXPECT_EQ(file.trained_tokens(), 3u);
  EXPECT_EQ(file.max_token(), 300u);
  EXPECT_THAT(file.sample(0).tokens, ElementsAre(5, 6, 7));
  EXPECT_THAT(file.sample(0).trained, ElementsAre(0, 1, 1));
  EXPECT_THAT(file.sample(1).tokens, ElementsAre(9, 300));
  EXPECT_THAT(file.sample(1).trained, ElementsAre(0, 1));
}

TEST(TokenFile, AnyChangedByteIsFound) {
  const std::string right = TokenFileFields(kSamples).bytes();
  ASSERT_EQ(refusal(right), "accepted");
  for (std::size_t i = 0; i < right.size(); ++i) {
    std::string wrong = right;
    wrong[i] = static_cast<char>(wrong[i] ^ 0x10);
    EXPECT_NE(refusal(wrong), "accepted") << "byte " << i;
  }
}

TEST(TokenFile, AnyOtherLengthIsFound) {
  const std::string right = TokenFileFields(kSamples).bytes();
  for (std::size_t length = 0; length < right.size(); ++length) {
    EXPECT_NE(refusal(right.substr(0, length)), "accepted") << length << " bytes";
  }
  EXPECT_THAT(refusal(right + '\0'), HasSubstr("truncated or overlong"));
}

TEST(TokenFile, AChangedTokenIsCorruption) {
  std::string bytes = TokenFileFields(kSamples).bytes();
  bytes[64 + 3 * 8] = 77;
  const TemporaryTokenFile file(bytes);

  EXPECT_THROW(TokenFile::open(file.path()), CorruptionError);
}

TEST(TokenFile, ForeignFilesAreNamed) {
  EXPECT_THAT(refusal(std::string(200, 'x')), HasSubstr("not a token file"));
  EXPECT_THAT(refusal("hello"), HasSubstr("5 bytes are too few"));
  EXPECT_THROW(TokenFile::open("/nonexistent/x.tok"), DataError);
  EXPECT_THROW(TokenFile::open("/"), DataError);
}

TEST(TokenFile, AnotherVersionIsNamed) {
  TokenFileFields fields(kSamples);
  fields.version = 2;

  EXPECT_THAT(refusal(fields.bytes()), HasSubstr("version 2"));
}

TEST(TokenFile, ZeroSamplesAreRefused) {
  EXPECT_THAT(refusal(TokenFileFields({}).bytes()), HasSubstr("no samples"));
}

TEST(TokenFile, CountsThatWrapAreRefused) {
  TokenFileFields fields(kSamples);
  // 8 * (2^61 + 2 + 1) is 24 in 64 bits, the size of the three offsets that are there.
  fields.samples = (std::uint64_t{1} << 61) + 2;

  EXPECT_THAT(refusal(fields.bytes()), HasSubstr("truncated or overlong"));
}

TEST(TokenFile, OffsetsOutOfOrderOrBoundsAreRefused) {
  for (const std::vector<std::uint64_t>& offsets :
       {std::vector<std::uint64_t>{1, 3, 5}, {0, 3, 4}, {0, 0, 5}, {0, 5, 5}, {0, 1000, 5}, {0, UINT64_MAX, 5}}) {
    TokenFileFields fields(kSamples);
    fields.offsets = offsets;
    EXPECT_THAT(refusal(fields.bytes()), HasSubstr("sample")) << ::testing::PrintToString(offsets);
  }
}

TEST(TokenFile, AMaskThatIsNoMaskIsRefused) {
  TokenFileFields two(kSamples);
  two.mask[1] = 2;
  TokenFileFields first(kSamples);
  first.mask[3] = 1;
  first.trained_tokens = 4;
  TokenFileFields sum(kSamples);
  sum.trained_tokens = 2;

  EXPECT_THAT(refusal(two.bytes()), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(refusal(first.bytes()), HasSubstr("first token of sample 1"));
  EXPECT_THAT(refusal(sum.bytes()), HasSubstr("does not add up"));
}

TEST(TokenFile, AWrongLargestTokenIsRefused) {
  TokenFileFields fields(kSamples);
  fields.max_token = 299;

  EXPECT_THAT(refusal(fields.bytes()), HasSubstr("largest token"));
}

TEST(TokenFile, ASampleBeyondTheLastIsTheCallersMistake) {
  const TemporaryTokenFile path(kSamples);
  const TokenFile file = TokenFile::open(path.path());

  EXPECT_THROW(file.sample(2), ContractViolation);
}

}  // namespace
}  // namespace strata::data
