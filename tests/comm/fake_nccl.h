// FakeNccl: a back-end of c10d on host memory that behaves as ProcessGroupNCCL does to its caller, for ranks that are
// threads of one process. What a GPU would run late, it runs in the call: the caller is a stream's thread. An aborted
// or late collective returns as if it had succeeded, without having moved anything, and only getError() tells, as
// NCCL's. It says nothing about what NCCL does inside.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace strata::test {

// All groups of the process, by name; what happened in them and what shall fail.
class FakeNccl {
 public:
  enum class Failure { TimeOut, LostConnection, ThrowsInTheCall, ThrowsInsideTheGroup };

  // A rank of a group has connected, run a collective, aborted, ... : "connect", "all_gather", "exchange", "abort",
  // "shutdown", in the order of the rank.
  std::vector<std::string> events(const std::string& group, int rank) {
    const std::lock_guard lock(mutex_);
    return groups_[group].events[rank];
  }
  std::size_t count(const std::string& group, int rank, const std::string& event) {
    std::size_t n = 0;
    for (const std::string& each : events(group, rank)) n += each == event ? 1 : 0;
    return n;
  }
  // What NCCL would have answered with a hang or with undefined behaviour.
  std::vector<std::string> violations() {
    const std::lock_guard lock(mutex_);
    return violations_;
  }
  // Forgets all. Requires: no group is in use.
  void reset() {
    const std::lock_guard lock(mutex_);
    groups_.clear();
    violations_.clear();
    queued_before_ = false;
    on_abort_ = {};
  }
  // The name of the one group since then.
  std::string only_group() {
    const std::lock_guard lock(mutex_);
    return groups_.size() == 1 ? groups_.begin()->first : "";
  }
  // A GPU may begin when everything is queued: the thread that queues then sees no error, whatever has failed. For all
  // groups; before their first collective.
  void queue_before_anything_fails() {
    const std::lock_guard lock(mutex_);
    queued_before_ = true;
  }
  // Called by each abort, before it ends anything.
  void on_abort(std::function<void(const std::string& group)> fn) {
    const std::lock_guard lock(mutex_);
    on_abort_ = std::move(fn);
  }
  // The `nth` collective (1: the first one) of `rank`, or one exchange with a partner, fails. Where that is no refusal
  // to queue it, it is late or lost for the others of the group as well.
  void fail(const std::string& group, int rank, std::size_t nth, Failure failure) {
    const std::lock_guard lock(mutex_);
    groups_[group].failures[{rank, nth}] = failure;
  }
  std::size_t failures_so_far() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  friend class FakeNcclBackend;
  struct Send {
    const std::byte* data;
    std::size_t bytes;
    bool taken = false;
  };
  struct Group {
    std::set<int> connected;
    std::map<int, std::vector<std::string>> events;
    std::map<std::pair<int, std::size_t>, Failure> failures;
    std::map<std::pair<int, int>, std::vector<std::shared_ptr<Send>>> sends;  // by source and destination
    bool failed = false;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Group> groups_;               // guarded by mutex_
  std::vector<std::string> violations_;               // guarded by mutex_
  bool queued_before_ = false;                        // guarded by mutex_
  std::size_t failed_ = 0;                            // guarded by mutex_
  std::function<void(const std::string&)> on_abort_;  // guarded by mutex_
};

class FakeNcclBackend final : public c10d::Backend {
 public:
  FakeNcclBackend(FakeNccl& nccl, std::string group, int rank, int world, std::chrono::milliseconds timeout)
      : Backend(rank, world), nccl_(nccl), group_(std::move(group)), timeout_(timeout) {
    setBoundDeviceId(at::Device(at::kCPU, 0));
  }
  ~FakeNcclBackend() override {
    if (!ended_) abort();  // as NCCL's, which also prints a warning
  }

  const std::string getBackendName() const override { return "fake nccl"; }
  bool supportsCoalescing() const override { return true; }

  // Returns when all have come; no abort ends it.
  void eagerConnectSingleDevice(at::Device device) override {
    std::unique_lock lock(nccl_.mutex_);
    if (device != getBoundDeviceId()) violation("connected to a device that the group is not bound to");
    note("connect");
    group().connected.insert(getRank());
    nccl_.changed_.notify_all();
    nccl_.changed_.wait(lock, [&] { return group().connected.size() == static_cast<std::size_t>(getSize()); });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& own,
                                                 const c10d::AllgatherOptions& options) override {
    const auto bytes = static_cast<std::size_t>(own.numel());
    auto* const rows = static_cast<std::byte*>(all.data_ptr());
    std::vector<Part> out, in;
    for (int peer = 0; peer < getSize(); ++peer) {
      std::byte* const row = rows + static_cast<std::size_t>(peer) * bytes;
      if (peer == getRank()) {
        if (own.data_ptr() != row) std::memmove(row, own.data_ptr(), bytes);
        continue;
      }
      out.push_back({peer, static_cast<std::byte*>(own.data_ptr()), bytes});
      in.push_back({peer, row, bytes});
    }
    run("all_gather", out, in);
    if (options.asyncOp) return c10::make_intrusive<Done>();
    return nullptr;
  }

  void startCoalescing() override {
    if (open_) violation_now("a group inside a group");
    open_ = true;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    if (!open_) violation_now("the end of a group that was not begun");
    open_ = false;
    const std::vector<Part> out = std::move(out_), in = std::move(in_);
    out_ = in_ = {};
    run("exchange", out, in);
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    return add(out_, tensors, peer);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int /*tag*/) override {
    return add(in_, tensors, peer);
  }

  c10d::ErrorType getError() override {
    const std::lock_guard lock(nccl_.mutex_);
    if (nccl_.queued_before_ && std::this_thread::get_id() == queues_) return c10d::ErrorType::SUCCESS;
    return error_;
  }
  void abort() override {
    std::unique_lock lock(nccl_.mutex_);
    note("abort");
    if (const auto fn = nccl_.on_abort_) {
      lock.unlock();
      fn(group_);
      lock.lock();
    }
    if (shut_down_) violation("an abort after a shutdown");
    if (open_) violation("an abort inside a group, which keeps what the thread gives NCCL from then on");
    ended_ = true;
    nccl_.changed_.notify_all();
  }
  void shutdown() override {
    const std::lock_guard lock(nccl_.mutex_);
    note("shutdown");
    if (ended_) violation("a shutdown after an abort, or a second one");
    if (running_) violation("a shutdown while a collective is running");
    ended_ = shut_down_ = true;
  }

 private:
  struct Part {
    int peer;
    std::byte* data;
    std::size_t bytes;
  };
  class Done final : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds) override { return true; }
  };

  FakeNccl::Group& group() { return nccl_.groups_[group_]; }  // these three under the mutex
  void note(const std::string& event) { group().events[getRank()].push_back(event); }
  void violation(const std::string& what) { nccl_.violations_.push_back(what); }
  void violation_now(const std::string& what) {
    const std::lock_guard lock(nccl_.mutex_);
    violation(what);
  }

  c10::intrusive_ptr<c10d::Work> add(std::vector<Part>& to, std::vector<at::Tensor>& tensors, int peer) {
    if (!open_) violation_now("a transfer outside of a group waits for its partner's");
    {
      const std::lock_guard lock(nccl_.mutex_);
      const auto failure = group().failures.find({getRank(), collectives_ + 1});
      if (failure != group().failures.end() && failure->second == FakeNccl::Failure::ThrowsInsideTheGroup) {
        throw std::runtime_error("NCCL says no");
      }
    }
    if (tensors.size() != 1 || tensors[0].device() != getBoundDeviceId()) violation_now("a tensor elsewhere");
    to.push_back(
        {peer, static_cast<std::byte*>(tensors.at(0).data_ptr()), static_cast<std::size_t>(tensors[0].numel())});
    return c10::make_intrusive<Done>();
  }

  void run(const char* what, const std::vector<Part>& out, const std::vector<Part>& in) {
    std::unique_lock lock(nccl_.mutex_);
    note(what);
    queues_ = std::this_thread::get_id();
    if (!group().connected.count(getRank())) violation("a collective of a group that is not connected");
    const auto failure = group().failures.find({getRank(), ++collectives_});
    if (failure != group().failures.end()) {
      ++nccl_.failed_;
      if (failure->second == FakeNccl::Failure::ThrowsInTheCall) throw std::runtime_error("NCCL says no");
      // The watchdog's order: the error, then the abort.
      error_ = failure->second == FakeNccl::Failure::TimeOut ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
      group().failed = true;
      nccl_.changed_.notify_all();
      return;
    }
    if (ended_ || error_ != c10d::ErrorType::SUCCESS) return;
    running_ = true;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));  // ranks come in any order
    lock.lock();
    transfer(lock, out, in);
    running_ = false;
  }

  void transfer(std::unique_lock<std::mutex>& lock, const std::vector<Part>& out, const std::vector<Part>& in) {
    std::vector<std::shared_ptr<FakeNccl::Send>> mine;
    for (const Part& part : out) {
      mine.push_back(std::make_shared<FakeNccl::Send>(FakeNccl::Send{part.data, part.bytes}));
      group().sends[{getRank(), part.peer}].push_back(mine.back());
    }
    nccl_.changed_.notify_all();
    bool moved = true;
    for (const Part& part : in) moved = moved && receive(lock, part);
    if (moved) (void)wait(lock, [&] { return all_taken(mine); });
    // What nobody has taken must not be read once this returns.
    for (const Part& part : out) group().sends[{getRank(), part.peer}].clear();
  }
  bool receive(std::unique_lock<std::mutex>& lock, const Part& part) {
    auto& queued = group().sends[{part.peer, getRank()}];
    const auto next = [&]() -> FakeNccl::Send* {
      for (const auto& each : queued) {
        if (!each->taken) return each.get();
      }
      return nullptr;
    };
    if (!wait(lock, [&] { return next() != nullptr; })) return false;
    FakeNccl::Send& send = *next();
    if (send.bytes != part.bytes)
      violation("a receive of " + std::to_string(part.bytes) + " bytes where " + std::to_string(send.bytes) + " come");
    std::memcpy(part.data, send.data, std::min(send.bytes, part.bytes));
    send.taken = true;
    nccl_.changed_.notify_all();
    return true;
  }
  static bool all_taken(const std::vector<std::shared_ptr<FakeNccl::Send>>& sends) {
    for (const auto& each : sends) {
      if (!each->taken) return false;
    }
    return true;
  }
  // False where the group is aborted, or late.
  template <typename Fn>
  bool wait(std::unique_lock<std::mutex>& lock, Fn holds) {
    (void)nccl_.changed_.wait_for(lock, timeout_, [&] { return ended_ || group().failed || holds(); });
    if (!ended_ && !holds()) error_ = c10d::ErrorType::TIMEOUT;
    return !ended_ && holds();
  }

  FakeNccl& nccl_;
  const std::string group_;
  const std::chrono::milliseconds timeout_;
  std::vector<Part> out_, in_;
  bool open_ = false;
  std::minstd_rand random_{static_cast<unsigned>(getRank()) + 1};
  // Guarded by the mutex of nccl_:
  std::size_t collectives_ = 0;
  std::thread::id queues_;
  c10d::ErrorType error_ = c10d::ErrorType::SUCCESS;
  bool ended_ = false, shut_down_ = false, running_ = false;
};

}  // namespace strata::test
