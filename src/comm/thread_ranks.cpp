#include "comm/thread_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "comm/sum_rows.h"
#include "core/error.h"

namespace strata::comm {
namespace {

// Where the ranks of one channel wait for each other and show each other their memory.
class Meeting {
 public:
  explicit Meeting(std::size_t world) : shown_(world, nullptr) {}

  // Returns once all ranks have called it. Throws: the reason of abort().
  void meet() {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    const std::uint64_t round = round_;
    if (++arrived_ == shown_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || failure_; });
    if (round_ == round) std::rethrow_exception(failure_);
  }
  // Shows `data` to all ranks, which may read it until the next meet().
  void show(std::size_t rank, std::byte* data) {
    {
      const std::lock_guard lock(mutex_);
      shown_[rank] = data;
    }
    meet();
  }
  std::byte* of(std::size_t rank) const {
    const std::lock_guard lock(mutex_);
    return shown_[rank];
  }
  void abort(const std::exception_ptr& reason) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = reason;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte*> shown_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::exception_ptr failure_;
};

struct Shared {
  explicit Shared(std::size_t n) : world(n), queued(n), blocking(n) {}
  const std::size_t world;
  Meeting queued;
  Meeting blocking;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Shared> shared, std::size_t rank, ShardMath& math)
      : shared_(std::move(shared)), rank_(rank), math_(math) {}

  std::size_t rank() const override { return rank_; }
  std::size_t world() const override { return shared_->world; }

  void all_gather(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] {
      Meeting& meeting = shared_->queued;
      meeting.show(rank_, full.data);
      for (std::size_t peer = 0; peer < world(); ++peer) {
        if (peer != rank_) copy_row(full, peer, meeting.of(peer), peer);
      }
      meeting.meet();
    });
  }
  void all_to_all(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] { exchange(full); });
  }
  void reduce_scatter(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] {
      exchange(full);
      if (world() == 1) return;
      std::vector<float> scratch(kSumChunk);
      sum_rows(math_, full, world(), rank_, {reinterpret_cast<std::byte*>(scratch.data()), DType::F32, kSumChunk});
    });
  }

  void all_reduce_sum(std::span<double> values) override {
    std::vector<double> all(values.size() * world());
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(rank_ * values.size()));
    all_gather_values(all);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0;
      for (std::size_t r = 0; r < world(); ++r) values[i] += all[r * values.size() + i];
    }
  }
  void all_gather_values(std::span<double> all) override {
    Meeting& meeting = shared_->blocking;
    const TensorSpan full{reinterpret_cast<std::byte*>(all.data()), DType::F32, all.size() * 2};
    meeting.show(rank_, full.data);
    for (std::size_t peer = 0; peer < world(); ++peer) {
      if (peer != rank_) copy_row(full, peer, meeting.of(peer), peer);
    }
    meeting.meet();
    control_bytes_ += full.bytes() / world() * (world() - 1);
  }
  void broadcast(std::span<std::byte> bytes, std::size_t root) override {
    Meeting& meeting = shared_->blocking;
    meeting.show(rank_, bytes.data());
    if (rank_ != root && !bytes.empty()) std::memcpy(bytes.data(), meeting.of(root), bytes.size());
    meeting.meet();
    if (rank_ == root) control_bytes_ += bytes.size() * (world() - 1);
  }
  void barrier() override { shared_->blocking.meet(); }

  void abort(std::exception_ptr reason) override {
    shared_->queued.abort(reason);
    shared_->blocking.abort(reason);
  }
  CommStats stats() const override { return {bytes_sent_, control_bytes_, busy_seconds_}; }

 private:
  template <typename Fn>
  void on(Stream& stream, TensorSpan full, Fn fn) {
    STRATA_EXPECTS(full.numel % world() == 0, "rows of equal size");
    stream.launch([this, full, fn] {
      const auto start = std::chrono::steady_clock::now();
      try {
        fn();
      } catch (...) {
        abort(std::current_exception());
        throw;
      }
      bytes_sent_ += full.bytes() / world() * (world() - 1);
      busy_seconds_ = busy_seconds_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
  }
  // Row `row` of ours becomes row `from_row` of the peer's.
  void copy_row(TensorSpan full, std::size_t row, const std::byte* peer, std::size_t from_row) const {
    const std::size_t bytes = full.bytes() / world();
    if (bytes > 0) std::memcpy(full.data + row * bytes, peer + from_row * bytes, bytes);
  }
  void exchange(TensorSpan full) {
    Meeting& meeting = shared_->queued;
    // What comes would overwrite what others still have to read.
    const std::vector<std::byte> mine(full.data, full.data + full.bytes());
    meeting.show(rank_, const_cast<std::byte*>(mine.data()));
    for (std::size_t peer = 0; peer < world(); ++peer) copy_row(full, peer, meeting.of(peer), rank_);
    meeting.meet();
  }

  const std::shared_ptr<Shared> shared_;
  const std::size_t rank_;
  ShardMath& math_;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
  std::atomic<std::uint64_t> control_bytes_ = 0;
  std::atomic<double> busy_seconds_ = 0;
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
