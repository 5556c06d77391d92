#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/cgroup.h"
#include "core/cpu_share.h"
#include "core/error.h"
#include "core/memory_nodes.h"
#include "core/parallel.h"

namespace strata {
namespace {

// More ranges than threads, so that a thread which loses its core to another process does not hold up the rest.
constexpr std::size_t kRangesPerThread = 4;

// One parallel_for: lives on the caller's stack until every thread has left it.
class Job {
 public:
  using Body = std::function<void(std::size_t, std::size_t)>;

  Job(std::size_t n, std::size_t range, const Body& body) : n_(n), range_(range), body_(body) {}

  // Takes ranges until none is left. A range that throws does not stop the others, so that the exception reported is
  // that of the lowest range, whatever the threads did.
  void work() {
    while (true) {
      // relaxed: the counter only hands out indices; the pool's mutex publishes the job and the results.
      const std::size_t begin = next_.fetch_add(1, std::memory_order_relaxed) * range_;
      if (begin >= n_) return;
      try {
        body_(begin, std::min(n_, begin + range_));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (begin < failed_at_) {
          failed_at_ = begin;
          error_ = std::current_exception();
        }
      }
    }
  }

  std::exception_ptr error() const { return error_; }

 private:
  const std::size_t n_;
  const std::size_t range_;
  const Body& body_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::size_t failed_at_ = std::numeric_limits<std::size_t>::max();  // guarded by mutex_
  std::exception_ptr error_;                                         // guarded by mutex_; read when all have left
};

class ThreadPool final : public Parallel {
 public:
  explicit ThreadPool(std::size_t threads) {
    workers_.reserve(threads - 1);
    for (std::size_t i = 1; i < threads; ++i) {
      workers_.emplace_back([this, i, threads](const std::stop_token& stop) {
        machine_nodes().bind_thread(i, threads);
        serve(stop);
      });
    }
  }

  std::size_t threads() const override { return workers_.size() + 1; }

  void parallel_for(std::size_t n, std::size_t grain, const Job::Body& fn) override {
    STRATA_EXPECTS(grain > 0, "a grain of 0 elements");
    if (n == 0) return;
    const std::size_t range = align_up(ceil_div(n, threads() * kRangesPerThread), grain);
    if (range >= n || workers_.empty()) return fn(0, n);
    Job job(n, range, fn);
    {
      const std::lock_guard lock(mutex_);
      // While the caller waits for the last range, there is no job any more but still a body that may nest.
      STRATA_EXPECTS(job_ == nullptr && working_ == 0, "parallel_for has one caller at a time and does not nest");
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    {
      std::unique_lock lock(mutex_);
      job_ = nullptr;  // a worker that wakes up only now finds nothing
      idle_.wait(lock, [this] { return working_ == 0; });
    }
    if (job.error()) std::rethrow_exception(job.error());
  }

 private:
  void serve(const std::stop_token& stop) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, stop, [&] { return job_ != nullptr && generation_ != seen; })) {
      seen = generation_;
      Job* const job = job_;
      ++working_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--working_ == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable idle_;
  Job* job_ = nullptr;                 // guarded by mutex_
  std::uint64_t generation_ = 0;       // guarded by mutex_; tells a worker that a job is not the one it just left
  std::size_t working_ = 0;            // guarded by mutex_
  std::vector<std::jthread> workers_;  // last member: the threads end before what they use
};

std::size_t affinity_cpus() {
  const std::size_t cpus = allowed_cpus().size();
  return cpus > 0 ? cpus : std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

std::unique_ptr<Parallel> make_thread_pool(std::size_t threads) {
  return std::make_unique<ThreadPool>(threads == 0 ? usable_cpus() : threads);
}

std::size_t usable_cpus() {
  std::ostringstream membership;
  membership << std::ifstream("/proc/self/cgroup").rdbuf();
  const std::size_t cpus = affinity_cpus();
  const auto quota = cgroup_cpu_quota("/sys/fs/cgroup", membership.str());
  if (!quota) return cpus;
  // Rounded up: a share of a core is worth a thread; rounded down, it would stay unused.
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(*quota)), 1, cpus);
}

}  // namespace strata
