// How many requests the processes of one job may have in flight on a drive that they share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nvme/named_memory.h"

namespace strata::nvme {

// One member of the group of all objects with the same job and drive on this machine; each is used by one queue. A
// token is one request in flight.
//   - Who holds none gets one, always. So nobody is stuck, and who is refused has requests in flight whose completion
//   is
//     the moment to ask again: nobody waits for another and nobody polls.
//   - Otherwise all together hold at most `limit`.
//   - A share is `limit` over those that hold any. Who has its share takes what others leave free, but not while one is
//     refused that has less than its own. So who has enough to do holds at least its share, in whole tokens, a few
//     completions after it began to ask.
// Hence all hold at most limit + members - 1. What a dead process held counts until the next one joins or, now and
// then, one is refused. take() and give_back(): of one thread, lock-free.
class DriveTokens {
 public:
  static constexpr std::size_t kMaxMembers = 64;

  // Null, with one warning that says why, when the group cannot be joined: it is about speed only.
  static std::unique_ptr<DriveTokens> join(const std::string& job, const std::string& drive, unsigned limit);

  // Throws: IoError when there is no common memory, or when it has kMaxMembers members.
  DriveTokens(const std::string& job, const std::string& drive, unsigned limit);
  ~DriveTokens();
  DriveTokens(const DriveTokens&) = delete;
  DriveTokens& operator=(const DriveTokens&) = delete;

  bool take();
  // Requires: one is held.
  void give_back();

 private:
  // Written by its owner alone, apart from forget_the_dead(). A cache line each.
  struct alignas(64) Member {
    std::atomic<std::uint32_t> held;
    std::atomic<std::uint32_t> short_of_share;  // 1: refused although it has less than its share
  };
  using Members = std::array<Member, kMaxMembers>;
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");

  bool may_hold(std::uint32_t tokens);
  void forget_the_dead();

  const std::uint32_t limit_;
  NamedMemory memory_;
  Members& members_;
  std::size_t self_ = kMaxMembers;
  std::uint32_t refusals_ = 0;
};

}  // namespace strata::nvme
