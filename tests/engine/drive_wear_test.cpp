#include "engine/drive_wear.h"

#include <gmock/gmock.h>

#include <limits>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::engine {
namespace {

using namespace strata::literals;
using testing::HasSubstr;

TEST(DriveWear, CountsTheLayOutAndEveryStep) {
  EXPECT_EQ(DriveWear::total(100, 10, 7), 170U);
}

TEST(DriveWear, DoesNotWrapAround) {
  EXPECT_GE(DriveWear::total(1, std::uint64_t{1} << 60, std::numeric_limits<std::int64_t>::max()),
            std::uint64_t{1} << 62);
}

TEST(DriveWear, ARunWithinTheLimitIsAccepted) {
  const DriveWear wear{.rated_bytes = {}, .limit_bytes = 170};
  EXPECT_NO_THROW(wear.check(100, 10, 7));
  EXPECT_NO_THROW(DriveWear{}.check(100, 10, 7));
}

TEST(DriveWear, ARunBeyondTheLimitIsRefusedWithTheNumbersAndWhatHelps) {
  const DriveWear wear{.rated_bytes = {}, .limit_bytes = 3_GiB};
  try {
    wear.check(1_GiB, 1_GiB, 5);
    FAIL() << "accepted";
  } catch (const OutOfBudget& error) {
    EXPECT_EQ(error.need_bytes(), 6_GiB);
    EXPECT_EQ(error.have_bytes(), 3_GiB);
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("6.00 GiB"), HasSubstr("1.00 GiB a step"), HasSubstr("5 steps"),
                               HasSubstr("strata.nvme.wear_limit is 3.00 GiB"), HasSubstr("strata.budgets.host")));
  }
}

TEST(DriveWear, AllowsAStepThatEndsExactlyAtTheLimit) {
  const DriveWear wear{.rated_bytes = {}, .limit_bytes = 100};
  EXPECT_TRUE(wear.allows(90, 10));
  EXPECT_FALSE(wear.allows(91, 10));
  EXPECT_FALSE(wear.allows(101, 0));
  EXPECT_TRUE(DriveWear{}.allows(std::uint64_t{1} << 60, 1));
}

TEST(DriveWear, TheForecastGivesShareStepsAndTime) {
  const DriveWear wear{.rated_bytes = 600'000'000'000'000, .limit_bytes = {}};
  const std::string text = wear.forecast(0, 6'000'000'000, 1000, 10);
  EXPECT_THAT(text, HasSubstr("in 1000 steps"));
  EXPECT_THAT(text, HasSubstr("1 % of the rated 600 TB"));       // 6e12 of 6e14
  EXPECT_THAT(text, HasSubstr("last about 100000 such steps"));  // 6e14 / 6e9
  EXPECT_THAT(text, HasSubstr("11.6 days of training"));         // 1e5 steps of 10 s
}

TEST(DriveWear, WithoutARatingTheForecastSaysHowToGetOne) {
  EXPECT_THAT(DriveWear{}.forecast(0, 1_GiB, 10, 0), HasSubstr("strata.nvme.rated_writes"));
}

TEST(DriveWear, ARunThatWritesNothingHasNoLifeToForecast) {
  const DriveWear wear{.rated_bytes = 1_GiB, .limit_bytes = {}};
  EXPECT_THAT(wear.forecast(0, 0, 10, 1), testing::Not(HasSubstr("would last")));
}

}  // namespace
}  // namespace strata::engine
