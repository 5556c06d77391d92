#include "nvme/drive_tokens.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <span>

#include "core/error.h"
#include "core/log.h"
#include "nvme/checksum.h"

namespace strata::nvme {
namespace {

constexpr std::uint32_t kRefusalsPerSweep = 64;

// Short, whatever job and drive are called, and another one for each user.
std::string name_of(const std::string& job, const std::string& drive) {
  const std::string all = std::to_string(::geteuid()) + '\n' + job + '\n' + drive;
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "strata-drive-%016llx",
                      static_cast<unsigned long long>(checksum(std::as_bytes(std::span(all)))));
  return text.data();
}

}  // namespace

std::unique_ptr<DriveTokens> DriveTokens::join(const std::string& job, const std::string& drive, unsigned limit) {
  try {
    return std::make_unique<DriveTokens>(job, drive, limit);
  } catch (const IoError& error) {
    log::warning_once("nvme.tokens." + drive, "the ranks of this machine do not share the queue of drive " + drive +
                                                  ": each fills it alone, at the same results and later reads. " +
                                                  error.what());
    return nullptr;
  }
}

DriveTokens::DriveTokens(const std::string& job, const std::string& drive, unsigned limit)
    : limit_(limit),
      memory_(name_of(job, drive), sizeof(Members)),
      // Zeroed memory is a valid Members: lock-free atomics are their values.
      members_(*static_cast<Members*>(memory_.data())) {
  STRATA_EXPECTS(limit > 0, "a drive needs at least one request in flight");
  for (std::size_t i = 0; i < kMaxMembers && self_ == kMaxMembers; ++i) {
    if (memory_.claim(i)) self_ = i;
  }
  if (self_ == kMaxMembers) {
    throw IoError({EUSERS, "share", drive, 0, 0, std::to_string(kMaxMembers) + " queues of this job use it already"});
  }
  members_[self_].held = 0;  // of a dead one, perhaps
  members_[self_].short_of_share = 0;
  forget_the_dead();
}

DriveTokens::~DriveTokens() {
  members_[self_].held = 0;
  members_[self_].short_of_share = 0;
}

bool DriveTokens::take() {
  std::atomic<std::uint32_t>& held = members_[self_].held;
  const std::uint32_t before = held.load(std::memory_order_relaxed);
  // Announced before looking at the others, in one order for all: of two that want the last token one sees the other.
  held.store(before + 1, std::memory_order_seq_cst);
  if (before == 0 || may_hold(before + 1)) return true;
  held.store(before, std::memory_order_seq_cst);
  if (++refusals_ % kRefusalsPerSweep == 0) forget_the_dead();
  return false;
}

bool DriveTokens::may_hold(std::uint32_t tokens) {
  std::uint64_t all = 0;
  std::uint64_t users = 0;
  bool owed = false;
  for (std::size_t i = 0; i < kMaxMembers; ++i) {
    const std::uint32_t held = members_[i].held.load(std::memory_order_seq_cst);
    all += held;
    users += held > 0 ? 1 : 0;
    owed = owed || (i != self_ && members_[i].short_of_share.load(std::memory_order_relaxed) != 0);
  }
  const bool within_share = tokens * users <= limit_;
  const bool free = all <= limit_;
  members_[self_].short_of_share.store(within_share && !free ? 1 : 0, std::memory_order_relaxed);
  return free && (within_share || !owed);
}

void DriveTokens::give_back() {
  Member& self = members_[self_];
  // Whether more are wanted shows at the next take(), which follows at once if so.
  self.short_of_share.store(0, std::memory_order_relaxed);
  self.held.store(self.held.load(std::memory_order_relaxed) - 1, std::memory_order_seq_cst);
}

void DriveTokens::forget_the_dead() {
  for (std::size_t i = 0; i < kMaxMembers; ++i) {
    Member& member = members_[i];
    if (i == self_ || (member.held == 0 && member.short_of_share == 0)) continue;
    if (!memory_.claim(i)) continue;  // alive
    member.held = 0;
    member.short_of_share = 0;
    memory_.give_up(i);
  }
}

}  // namespace strata::nvme
