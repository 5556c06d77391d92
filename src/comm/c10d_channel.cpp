#include "comm/c10d_channel.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "comm/c10d_device_group.h"
#include "comm/c10d_device_ops.h"
#include "comm/c10d_text.h"
#include "comm/connection_lost.h"
#include "core/error.h"

namespace strata::comm {
namespace {

// Parts of the staging memory, each for one chunk under way. With few of them the link is idle while what has come is
// moved to its place.
constexpr std::size_t kSlots = 8;

// Bytes are what travels, whatever the type.
at::Tensor view(std::byte* data, std::size_t bytes) {
  return at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte);
}

}  // namespace

struct C10dChannel::Transfer {
  c10::intrusive_ptr<c10d::Work> work;
  std::size_t peer = 0;
};

// One collective under way.
class C10dChannel::Call {
 public:
  Call(C10dChannel& channel, std::string_view what, std::size_t bytes) : channel_(channel), what_(what), bytes_(bytes) {
    const std::lock_guard lock(channel_.mutex_);
    if (channel_.failure_) std::rethrow_exception(channel_.failure_);
    // Ranks at different collectives must time out, not take each other's bytes: Gloo ends the process when what comes
    // is longer than what is expected.
    const std::size_t sizes = std::hash<std::string_view>{}(what) ^ (bytes * 0x9E3779B97F4A7C15U);
    tag_ = static_cast<int>((channel_.calls_++ * 0x2545F491U ^ sizes ^ sizes >> 32) & 0x7FFFFFFF);
  }

  Transfer send(std::byte* data, std::size_t bytes, std::size_t peer) {
    return post(data, bytes, peer, [&](std::vector<at::Tensor>& tensors) {
      return channel_.backend_->send(tensors, static_cast<int>(peer), tag_);
    });
  }
  Transfer receive(std::byte* data, std::size_t bytes, std::size_t peer) {
    return post(data, bytes, peer, [&](std::vector<at::Tensor>& tensors) {
      return channel_.backend_->recv(tensors, static_cast<int>(peer), tag_);
    });
  }
  // Work of a device: it fails here where it cannot be queued, and where an earlier one has failed.
  template <typename Fn>
  void device(Fn fn) {
    try {
      channel_.device_->collective(what_, bytes_, fn);
    } catch (...) {
      const std::lock_guard lock(channel_.mutex_);
      if (!channel_.failure_) channel_.failure_ = std::current_exception();
      std::rethrow_exception(channel_.failure_);
    }
  }
  void wait(const Transfer& transfer) {
    begin_waiting(transfer.work.get());
    const auto start = std::chrono::steady_clock::now();
    bool done = false;
    try {
      done = transfer.work->wait(channel_.timeout_);
    } catch (const std::exception& e) {
      fail(transfer.peer, std::chrono::steady_clock::now() - start >= channel_.timeout_, e.what());
    }
    if (!done) fail(transfer.peer, false, "ended early");
    const std::lock_guard lock(channel_.mutex_);
    channel_.waiting_ = nullptr;
  }

 private:
  template <typename Fn>
  Transfer post(std::byte* data, std::size_t bytes, std::size_t peer, Fn fn) {
    try {
      std::vector<at::Tensor> tensors = {view(data, bytes)};
      return {fn(tensors), peer};
    } catch (const std::exception& e) {
      fail(peer, false, e.what());
    }
  }
  void begin_waiting(c10d::Work* work) {
    const std::lock_guard lock(channel_.mutex_);
    if (channel_.failure_) std::rethrow_exception(channel_.failure_);
    channel_.waiting_ = work;
  }
  // An abort comes first: what c10d says then is a consequence.
  [[noreturn]] void fail(std::size_t peer, bool late, const char* said) {
    const std::lock_guard lock(channel_.mutex_);
    channel_.waiting_ = nullptr;
    if (!channel_.failure_) {
      const std::string me = "rank " + std::to_string(channel_.ranks_[channel_.rank_]);
      const std::string other = "rank " + std::to_string(channel_.ranks_[peer]);
      const std::string call = std::string(what_) + " of " + std::to_string(bytes_) + " bytes: ";
      channel_.failure_ =
          late
              ? std::make_exception_ptr(
                    CommError(call + other + " has not answered " + me + " for " + seconds_text(channel_.timeout_) +
                              " (collective_timeout): it is stopped, busy, or at another collective"))
              : std::make_exception_ptr(ConnectionLost(call + me + " lost its connection to " + other +
                                                       ", which has ended or cannot be reached (" + brief(said) + ")"));
    }
    std::rethrow_exception(channel_.failure_);
  }

  C10dChannel& channel_;
  const std::string_view what_;
  const std::size_t bytes_;
  int tag_ = 0;
};

C10dChannel::C10dChannel(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
                         std::vector<std::size_t> ranks, std::shared_ptr<DeviceGroup> device)
    : backend_(std::move(backend)),
      device_(std::move(device)),
      timeout_(timeout),
      ranks_(std::move(ranks)),
      rank_(static_cast<std::size_t>(backend_->getRank())) {
  STRATA_EXPECTS(ranks_.size() == static_cast<std::size_t>(backend_->getSize()), "a name for each rank");
}

C10dChannel::~C10dChannel() = default;

void C10dChannel::all_gather(std::string_view what, std::byte* rows, std::size_t row_bytes) {
  const std::size_t n = world();
  Call call(*this, what, n * row_bytes);
  if (n == 1 || row_bytes == 0) return;
  if (device_) {
    return call.device([&](c10d::Backend& backend) { device_all_gather(backend, rows, row_bytes); });
  }
  const auto row = [&](std::size_t steps_back) { return rows + (rank_ + n - steps_back) % n * row_bytes; };
  const std::size_t next = (rank_ + 1) % n;
  const std::size_t previous = (rank_ + n - 1) % n;
  // All are posted at once, because they have different places to go; each row travels on as soon as it is here.
  std::vector<Transfer> receives, sends;
  for (std::size_t i = 1; i < n; ++i) receives.push_back(call.receive(row(i), row_bytes, previous));
  for (std::size_t i = 0; i + 1 < n; ++i) {
    if (i > 0) call.wait(receives[i - 1]);
    sends.push_back(call.send(row(i), row_bytes, next));
  }
  call.wait(receives.back());
  for (const Transfer& transfer : sends) call.wait(transfer);
}

void C10dChannel::exchange(std::string_view what, std::byte* rows, std::size_t row_bytes,
                           std::span<std::byte> staging) {
  struct Chunk {
    Transfer send, receive;
  };
  const std::size_t n = world();
  Call call(*this, what, n * row_bytes);
  if (n == 1 || row_bytes == 0) return;
  if (device_) {
    return call.device([&](c10d::Backend& backend) { device_exchange(backend, rows, row_bytes, staging); });
  }
  const std::size_t slot_bytes = staging.size() / kSlots;
  STRATA_EXPECTS(slot_bytes > 0, "staging memory");
  const std::size_t chunks = (row_bytes + slot_bytes - 1) / slot_bytes;
  // In each round the ranks form pairs, so nobody waits for a third.
  for (std::size_t round = 0; round < n; ++round) {
    const std::size_t partner = (round + n - rank_) % n;
    if (partner == rank_) continue;
    std::byte* const row = rows + partner * row_bytes;
    const auto size = [&](std::size_t i) { return std::min(slot_bytes, row_bytes - i * slot_bytes); };
    const auto slot = [&](std::size_t i) { return staging.data() + i % kSlots * slot_bytes; };
    const auto post = [&](std::size_t i) -> Chunk {
      Transfer receive = call.receive(slot(i), size(i), partner);
      return {call.send(row + i * slot_bytes, size(i), partner), std::move(receive)};
    };
    std::array<Chunk, kSlots> under_way;
    for (std::size_t i = 0; i < std::min(chunks, kSlots); ++i) under_way[i] = post(i);
    for (std::size_t i = 0; i < chunks; ++i) {
      Chunk& chunk = under_way[i % kSlots];
      call.wait(chunk.receive);
      call.wait(chunk.send);
      std::memcpy(row + i * slot_bytes, slot(i), size(i));
      if (i + kSlots < chunks) chunk = post(i + kSlots);
    }
  }
}

void C10dChannel::broadcast(std::span<std::byte> bytes, std::size_t root) {
  STRATA_EXPECTS(root < world(), "one of the ranks");
  Call call(*this, "broadcast", bytes.size());
  if (bytes.empty()) return;
  if (rank_ != root) return call.wait(call.receive(bytes.data(), bytes.size(), root));
  std::vector<Transfer> sends;
  for (std::size_t peer = 0; peer < world(); ++peer) {
    if (peer != root) sends.push_back(call.send(bytes.data(), bytes.size(), peer));
  }
  for (const Transfer& transfer : sends) call.wait(transfer);
}

// Dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
void C10dChannel::barrier() {
  const std::size_t n = world();
  Call call(*this, "barrier", 0);
  std::array<std::byte, 2> byte{};
  for (std::size_t distance = 1; distance < n; distance *= 2) {
    const Transfer receive = call.receive(&byte[0], 1, (rank_ + n - distance) % n);
    const Transfer send = call.send(&byte[1], 1, (rank_ + distance) % n);
    call.wait(receive);
    call.wait(send);
  }
}

void C10dChannel::abort(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = reason;
  if (waiting_ != nullptr) waiting_->abort();
}

}  // namespace strata::comm
