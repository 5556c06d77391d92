#include "nvme/drive_tokens.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/child_process.h"
#include "support/test_seed.h"

namespace strata::nvme {
namespace {

// Of this process, so that tests that run at once do not meet.
std::string job(const std::string& test) {
  return std::to_string(::getpid()) + " " + test;
}

unsigned take_all(DriveTokens& tokens) {
  unsigned taken = 0;
  while (tokens.take()) ++taken;
  return taken;
}

TEST(DriveTokens, GivesOneMemberAll) {
  DriveTokens only(job("one"), "drive", 4);
  EXPECT_EQ(take_all(only), 4u);

  only.give_back();

  EXPECT_EQ(take_all(only), 1u);
}

TEST(DriveTokens, AreOfOneJobAndOneDrive) {
  DriveTokens first(job("apart"), "drive", 4);
  DriveTokens other_drive(job("apart"), "other drive", 4);
  DriveTokens other_job(job("apart too"), "drive", 4);
  EXPECT_EQ(take_all(first), 4u);
  EXPECT_EQ(take_all(other_drive), 4u);
  EXPECT_EQ(take_all(other_job), 4u);
}

TEST(DriveTokens, GivesOneToWhoHasNone) {
  DriveTokens first(job("none"), "drive", 4);
  DriveTokens second(job("none"), "drive", 4);
  EXPECT_EQ(take_all(first), 4u);
  EXPECT_EQ(take_all(second), 1u);
}

TEST(DriveTokens, GivesBackTheShareOfWhoComesLater) {
  DriveTokens first(job("share"), "drive", 4);
  DriveTokens second(job("share"), "drive", 4);
  take_all(first);
  take_all(second);

  // One after the other completes and asks again at once.
  for (int i = 0; i < 2; ++i) {
    first.give_back();
    EXPECT_EQ(take_all(first), 0u) << "it has its share, and the other does not";
  }
  second.give_back();
  EXPECT_EQ(take_all(second), 2u);
  first.give_back();
  EXPECT_EQ(take_all(first), 1u) << "its share is two";
}

TEST(DriveTokens, LeavesToOthersWhatOneDoesNotNeed) {
  DriveTokens first(job("rest"), "drive", 8);
  DriveTokens second(job("rest"), "drive", 8);
  ASSERT_TRUE(second.take());
  EXPECT_EQ(take_all(first), 7u);

  second.give_back();

  EXPECT_EQ(take_all(first), 1u);
}

TEST(DriveTokens, AreFreeAgainWhenAMemberLeaves) {
  DriveTokens first(job("leaves"), "drive", 4);
  std::optional<DriveTokens> second(std::in_place, job("leaves"), "drive", 4);
  take_all(*second);
  EXPECT_EQ(take_all(first), 1u);

  second.reset();

  EXPECT_EQ(take_all(first), 3u);
}

TEST(DriveTokens, SaysSoWhenThereAreTooManyMembers) {
  const std::string name = job("many");
  std::deque<DriveTokens> members;
  for (std::size_t i = 0; i < DriveTokens::kMaxMembers; ++i) members.emplace_back(name, "the drive", 4);
  EXPECT_THROW(DriveTokens(name, "the drive", 4), IoError);

  test::ChildProcess other([&] {  // a process warns once
    testing::internal::CaptureStderr();
    const bool joined = DriveTokens::join(name, "the drive", 4) != nullptr;
    const std::string log = testing::internal::GetCapturedStderr();
    const bool said = log.find("do not share the queue of drive the drive") != std::string::npos &&
                      log.find("64 queues") != std::string::npos;
    if (joined || !said) throw std::runtime_error("joined, or no word of it: " + log);
  });
  EXPECT_EQ(other.wait(), 0);
}

// Members in one thread, each with so many requests to do at once, on a drive that completes about in order.
class DriveTokensPropertyTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  void start(std::size_t members, unsigned limit) {
    limit_ = limit;
    wanted_.assign(members, 0);
    held_.assign(members, 0);
    for (std::size_t i = 0; i < members; ++i) {
      members_.emplace_back(job("property " + std::to_string(GetParam())), "drive", limit);
    }
  }
  void want(std::size_t member, unsigned requests) {
    wanted_[member] = requests;
    fill(member);
  }
  // As a queue does: until it is refused, or has no more to do.
  void fill(std::size_t member) {
    while (held_[member] < wanted_[member]) {
      const bool none = held_[member] == 0;
      if (!members_[member].take()) {
        ASSERT_FALSE(none) << "it could never ask again";
        return;
      }
      ++held_[member];
      in_flight_.push_back({member, age_++});
      ASSERT_LE(in_flight_.size(), limit_ + members_.size() - 1);
    }
  }
  void complete_one() {
    const std::size_t which = random_() % std::min<std::size_t>(in_flight_.size(), 5);
    const std::size_t member = in_flight_[which].member;
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(which));
    members_[member].give_back();
    --held_[member];
    fill(member);
  }
  // Until all that is in flight now has completed, three times.
  void settle() {
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t now = age_;
      while (!in_flight_.empty() && std::any_of(in_flight_.begin(), in_flight_.end(),
                                                [now](const Request& request) { return request.age < now; })) {
        ASSERT_NO_FATAL_FAILURE(complete_one());
      }
    }
  }

  struct Request {
    std::size_t member;
    std::uint64_t age;
  };
  std::mt19937_64 random_{test::test_seed(GetParam())};
  unsigned limit_ = 0;
  std::uint64_t age_ = 0;
  std::deque<DriveTokens> members_;
  std::vector<unsigned> wanted_;
  std::vector<unsigned> held_;
  std::deque<Request> in_flight_;
};

TEST_P(DriveTokensPropertyTest, KeepsTheLimitFullAndGivesEverybodyTheirShare) {
  SCOPED_TRACE("seed " + std::to_string(test::test_seed(GetParam())));
  const std::size_t members = 2 + random_() % 5;
  start(members, 1 + static_cast<unsigned>(random_() % 40));
  for (int phase = 0; phase < 200; ++phase) {
    const std::size_t changed = random_() % members;
    const unsigned requests = static_cast<unsigned>(random_() % 3 == 0 ? 0 : random_() % (2 * limit_));
    ASSERT_NO_FATAL_FAILURE(want(changed, requests));
    // Sometimes the next change comes before the members have come to terms.
    if (random_() % 2 == 0) {
      for (std::size_t i = random_() % limit_; i > 0 && !in_flight_.empty(); --i) {
        ASSERT_NO_FATAL_FAILURE(complete_one());
      }
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(settle());
    const auto users = static_cast<unsigned>(
        std::count_if(wanted_.begin(), wanted_.end(), [](unsigned wanted) { return wanted > 0; }));
    unsigned demand = 0;
    for (std::size_t i = 0; i < members; ++i) {
      demand += wanted_[i];
      const unsigned share = users == 0 ? 0 : std::max(1u, limit_ / users);
      EXPECT_GE(held_[i], std::min(wanted_[i], share)) << "member " << i << " of " << users << ", limit " << limit_;
    }
    // With fewer tokens than members everybody has one.
    EXPECT_EQ(in_flight_.size(), std::min(demand, std::max(limit_, users)));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DriveTokensPropertyTest, testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace strata::nvme
