// SimulatedDrive: an NVMe tier whose time is a number. It moves real bytes, on the thread that makes time pass.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "offload/look_ahead.h"
#include "offload/tier.h"

namespace strata::test {

// Serves one request of `block_bytes` at a time per link: two links on a full-duplex drive, one on a half-duplex drive.
// Order as nvme::IoQueue: demand reads, prefetch reads, writes, oldest first, but of 8 requests at least one is a write
// while a write waits; a transfer is cut into requests, so that a later demand overtakes the rest of it. A transfer is
// complete `latency_seconds` after its last request left the link. One thread only.
class SimulatedDrive final : public offload::Tier {
 public:
  SimulatedDrive(const offload::DriveRates& rates, std::size_t block_bytes) : rates_(rates), block_(block_bytes) {}

  double now() const { return now_; }
  // Makes time pass until `until`; what completes on the way calls back at its own time.
  void advance_to(double until) {
    while (next_event() <= until) run_next();
    now_ = std::max(now_, until);
  }
  // Makes time pass until something happens. Requires: a transfer is under way.
  void advance() {
    STRATA_EXPECTS(next_event() < kNever, "everybody waits and nothing is under way");
    run_next();
  }
  // When the next thing happens; later than any time when nothing is under way.
  double next_event() const {
    double next = std::min(links_[0].free_at, links_[1].free_at);
    if (!completing_.empty()) next = std::min(next, completing_.begin()->first);
    return next;
  }

  offload::Home create(const std::string&, std::uint64_t bytes, MemoryTag) override {
    homes_.emplace_back(bytes, std::byte{0xff});
    return {static_cast<std::uint32_t>(homes_.size() - 1)};
  }
  std::byte* host_address(offload::Home) const override { return nullptr; }
  std::byte* device_address(offload::Home) const override { return nullptr; }
  bool cacheable() const override { return true; }
  Event read(offload::Home home, std::uint64_t offset, std::span<std::byte> to, IoUrgency urgency) override {
    std::byte* const from = homes_.at(home.index).data() + offset;
    stats_.bytes_read += to.size();
    return add(urgency == IoUrgency::Demand ? 0 : 1, to.data(), from, to.size());
  }
  Event write(offload::Home home, std::uint64_t offset, std::span<const std::byte> from) override {
    std::byte* const to = homes_.at(home.index).data() + offset;
    stats_.bytes_written += from.size();
    return add(kWrite, to, from.data(), from.size());
  }
  offload::LinkStats stats() const override { return stats_; }

 private:
  static constexpr double kNever = 1e300;
  static constexpr std::size_t kWrite = 2;
  static constexpr int kShareOfWrites = 8;
  struct Transfer {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
    std::size_t sent = 0;
    EventSource done;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  struct Link {
    double free_at = kNever;  // when the request on it ends; kNever: nothing is on it
    TransferPtr transfer;
    bool last = false;
    int reads_in_a_row = 0;
  };

  Event add(std::size_t kind, std::byte* to, const std::byte* from, std::size_t bytes) {
    auto transfer = std::make_shared<Transfer>(Transfer{to, from, bytes, 0, {}});
    transfer->done.submit();
    Event event = transfer->done.event();
    waiting_[kind].push_back(std::move(transfer));
    start_requests();
    return event;
  }

  void start_requests() {
    if (rates_.duplex == offload::Duplex::Half) {
      serve(links_[0], {0, 1, kWrite});
    } else {
      serve(links_[0], {0, 1});
      serve(links_[1], {kWrite});
    }
  }

  void serve(Link& link, std::vector<std::size_t> kinds) {
    if (link.free_at != kNever) return;
    if (link.reads_in_a_row >= kShareOfWrites - 1) std::rotate(kinds.begin(), kinds.end() - 1, kinds.end());
    for (const std::size_t kind : kinds) {
      if (waiting_[kind].empty()) continue;
      link.transfer = waiting_[kind].front();
      const std::size_t n = std::min(block_, link.transfer->bytes - link.transfer->sent);
      link.transfer->sent += n;
      link.last = link.transfer->sent == link.transfer->bytes;
      if (link.last) waiting_[kind].pop_front();
      link.reads_in_a_row = kind == kWrite ? 0 : link.reads_in_a_row + 1;
      link.free_at = now_ + static_cast<double>(n) /
                                (kind == kWrite ? rates_.write_bytes_per_second : rates_.read_bytes_per_second);
      return;
    }
  }

  void run_next() {
    now_ = next_event();
    for (Link& link : links_) {
      if (link.free_at != now_) continue;
      if (link.last) completing_.emplace(now_ + rates_.latency_seconds, std::move(link.transfer));
      link.transfer.reset();
      link.free_at = kNever;
    }
    start_requests();
    while (!completing_.empty() && completing_.begin()->first <= now_) {
      const TransferPtr transfer = completing_.begin()->second;
      completing_.erase(completing_.begin());
      std::memcpy(transfer->to, transfer->from, transfer->bytes);
      transfer->done.complete();
    }
  }

  const offload::DriveRates rates_;
  const std::size_t block_;
  double now_ = 0;
  std::vector<std::vector<std::byte>> homes_;
  std::array<std::deque<TransferPtr>, 3> waiting_;
  std::array<Link, 2> links_;
  std::multimap<double, TransferPtr> completing_;
  offload::LinkStats stats_;
};

}  // namespace strata::test
