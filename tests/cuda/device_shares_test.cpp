#include "cuda/device_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace strata::cuda {
namespace {

using ::testing::ElementsAre;

class Shares : public ::testing::Test {
 protected:
  std::vector<std::string> limits_;  // "device:sum"
  bool refuses_ = false;
  DeviceShares shares_{[this](int device, std::optional<std::uint64_t> sum) {
    if (refuses_) throw std::runtime_error("no limit today");
    limits_.push_back(std::to_string(device) + ":" + (sum ? std::to_string(*sum) : "none"));
  }};
};

TEST_F(Shares, TheLimitOfADeviceIsTheSumOfThoseThatLive) {
  {
    const auto one = shares_.add(0, 100);
    { const auto two = shares_.add(0, 30); }
    EXPECT_THAT(limits_, ElementsAre("0:100", "0:130", "0:100"));
  }
  EXPECT_THAT(limits_, ElementsAre("0:100", "0:130", "0:100", "0:none"));
}

TEST_F(Shares, DevicesDoNotCountForEachOther) {
  const auto one = shares_.add(0, 100);
  const auto two = shares_.add(1, 30);
  EXPECT_THAT(limits_, ElementsAre("0:100", "1:30"));
}

TEST_F(Shares, AShareThatIsSetAgainReplacesTheOneBefore) {
  auto share = shares_.add(0, 100);
  share = shares_.add(0, 30);
  EXPECT_THAT(limits_, ElementsAre("0:100", "0:130", "0:30"));
}

TEST_F(Shares, AShareThatMovesIsTakenBackOnce) {
  {
    auto from = shares_.add(0, 100);
    const auto to = std::move(from);
    EXPECT_THAT(limits_, ElementsAre("0:100"));
  }
  EXPECT_THAT(limits_, ElementsAre("0:100", "0:none"));
}

TEST_F(Shares, ALimitThatIsRefusedAddsNothing) {
  const auto one = shares_.add(0, 100);
  refuses_ = true;
  EXPECT_THROW(static_cast<void>(shares_.add(0, 30)), std::runtime_error);
  refuses_ = false;
  const auto three = shares_.add(0, 7);
  EXPECT_THAT(limits_, ElementsAre("0:100", "0:107"));
}

TEST_F(Shares, ALimitThatIsRefusedAtTheEndIsRightAtTheNextChange) {
  const auto one = shares_.add(0, 100);
  {
    const auto two = shares_.add(0, 30);
    refuses_ = true;
  }
  refuses_ = false;
  const auto three = shares_.add(0, 7);
  EXPECT_THAT(limits_, ElementsAre("0:100", "0:130", "0:107"));
}

TEST(FractionOf, GivesAtLeastTheBytesBack) {
  for (const std::uint64_t total : {std::uint64_t{25'757'220'864}, std::uint64_t{85'031'714'816}, std::uint64_t{3}}) {
    for (std::uint64_t bytes = 1; bytes <= total; bytes = bytes * 3 + 1) {
      const double back = fraction_of(bytes, total) * static_cast<double>(total);
      EXPECT_GE(static_cast<std::uint64_t>(back), bytes) << bytes << " of " << total;
      EXPECT_LE(back, static_cast<double>(bytes) + 1) << bytes << " of " << total;
    }
  }
}

TEST(FractionOf, IsNeverAboveOne) {
  EXPECT_EQ(fraction_of(10, 10), 1.0);
  EXPECT_EQ(fraction_of(11, 10), 1.0);
}

}  // namespace
}  // namespace strata::cuda
