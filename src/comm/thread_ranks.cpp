#include "comm/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/counted_communicator.h"
#include "core/error.h"

namespace strata::comm {
namespace {

// What a rank brings to a collective.
struct Shown {
  std::string_view collective;
  std::byte* data = nullptr;
  std::size_t bytes = 0;

  bool fits(const Shown& other) const { return collective == other.collective && bytes == other.bytes; }
  std::string text() const { return std::string(collective) + " of " + std::to_string(bytes) + " bytes"; }
};

// Where the ranks of one channel wait for each other and show each other their memory.
class Meeting {
 public:
  explicit Meeting(std::size_t world) : shown_(world) {}

  // Returns once all ranks have entered: until leave() each may work on the memory of all. Throws: the reason of
  // abort(); CommError when the ranks came for different collectives.
  void enter(std::size_t rank, Shown shown) {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    shown_[rank] = shown;
    if (++entered_ < shown_.size()) {
      const std::uint64_t round = round_;
      changed_.wait(lock, [&] { return round_ != round || failure_; });
      if (round_ == round) std::rethrow_exception(failure_);
      return;
    }
    require_same();
    entered_ = 0;
    ++round_;
    changed_.notify_all();
  }
  // Returns once all ranks have called it. That is soon, even when the channel is aborted meanwhile: until then others
  // may be reading this rank's memory.
  void leave() {
    std::unique_lock lock(mutex_);
    const std::uint64_t departure = departure_;
    if (++left_ == shown_.size()) {
      left_ = 0;
      ++departure_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return departure_ != departure; });
  }
  // Requires: between enter() and leave(), when nobody writes it.
  std::byte* of(std::size_t rank) const { return shown_[rank].data; }
  void abort(const std::exception_ptr& reason) {
    const std::lock_guard lock(mutex_);
    fail(reason);
  }

 private:
  void require_same() {
    for (std::size_t r = 1; r < shown_.size(); ++r) {
      if (shown_[r].fits(shown_[0])) continue;
      fail(std::make_exception_ptr(CommError("ranks disagree: rank 0 is at " + shown_[0].text() + ", rank " +
                                             std::to_string(r) + " at " + shown_[r].text())));
      std::rethrow_exception(failure_);
    }
  }
  void fail(const std::exception_ptr& reason) {
    if (!failure_) failure_ = reason;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Shown> shown_;
  std::size_t entered_ = 0;
  std::uint64_t round_ = 0;
  std::size_t left_ = 0;
  std::uint64_t departure_ = 0;
  std::exception_ptr failure_;
};

struct Shared {
  explicit Shared(std::size_t n) : world(n), queued(n), blocking(n) {}
  const std::size_t world;
  Meeting queued;
  Meeting blocking;
};

class ThreadRank final : public CountedCommunicator {
 public:
  ThreadRank(std::shared_ptr<Shared> shared, std::size_t rank, ShardMath& math)
      : shared_(std::move(shared)), rank_(rank), math_(math) {}

  std::size_t rank() const override { return rank_; }
  std::size_t world() const override { return shared_->world; }

  void all_gather(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] { gather_at(shared_->queued, {"all_gather", full.data, full.bytes()}); });
  }
  void all_to_all(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] { exchange({"all_to_all", full.data, full.bytes()}); });
  }
  void reduce_scatter(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] {
      exchange({"reduce_scatter", full.data, full.bytes()});
      math_.sum_rows(full, world(), rank_);
    });
  }

  void barrier() override {
    shared_->blocking.enter(rank_, {"barrier"});
    shared_->blocking.leave();
  }

  void abort(std::exception_ptr reason) override {
    shared_->queued.abort(reason);
    shared_->blocking.abort(reason);
  }

 private:
  void gather_rows(std::string_view what, std::span<std::byte> rows) override {
    gather_at(shared_->blocking, {what, rows.data(), rows.size()});
  }
  void broadcast_bytes(std::span<std::byte> bytes, std::size_t root) override {
    Meeting& meeting = shared_->blocking;
    meeting.enter(rank_, {"broadcast", bytes.data(), bytes.size()});
    if (rank_ != root && !bytes.empty()) std::memcpy(bytes.data(), meeting.of(root), bytes.size());
    meeting.leave();
  }
  // Everybody reads everybody's own row.
  void gather_at(Meeting& meeting, Shown full) {
    const std::size_t bytes = full.bytes / world();
    meeting.enter(rank_, full);
    for (std::size_t peer = 0; peer < world() && bytes > 0; ++peer) {
      if (peer != rank_) std::memcpy(full.data + peer * bytes, meeting.of(peer) + peer * bytes, bytes);
    }
    meeting.leave();
  }
  // Of two ranks the lower one swaps their rows, so that nothing is overwritten unread and nothing is allocated.
  void exchange(Shown full) {
    const std::size_t bytes = full.bytes / world();
    Meeting& meeting = shared_->queued;
    meeting.enter(rank_, full);
    for (std::size_t peer = rank_ + 1; peer < world() && bytes > 0; ++peer) {
      std::byte* const mine = full.data + peer * bytes;
      std::swap_ranges(mine, mine + bytes, meeting.of(peer) + rank_ * bytes);
    }
    meeting.leave();
  }

  const std::shared_ptr<Shared> shared_;
  const std::size_t rank_;
  ShardMath& math_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::size_t world, ShardMath& math) {
  STRATA_EXPECTS(world > 0, "at least one rank");
  const auto shared = std::make_shared<Shared>(world);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::size_t r = 0; r < world; ++r) ranks.push_back(std::make_unique<ThreadRank>(shared, r, math));
  return ranks;
}

}  // namespace strata::comm
