// Port: data parallelism over index ranges on the host.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace strata {

class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual std::size_t threads() const = 0;
  // Calls fn(begin, end) over disjoint ranges that cover [0, n); every begin is a multiple of `grain`. Ranges depend on
  // n, grain and threads() only. Returns when all have run; then rethrows the exception of the lowest range that threw.
  // Requires: grain > 0; one caller at a time, not from inside `fn`. With one thread each caller runs `fn` itself, and
  // any number may at the same time.
  virtual void parallel_for(std::size_t n, std::size_t grain,
                            const std::function<void(std::size_t, std::size_t)>& fn) = 0;
};

// `threads` std::threads (the caller is one of them). threads == 0 asks usable_cpus(). On several NUMA nodes the others
// are divided among the nodes and stay there (MemoryNodes::bind_thread).
// A std::thread build, not TBB: ThreadSanitizer reports false races inside Debian's TBB.
std::unique_ptr<Parallel> make_thread_pool(std::size_t threads);

// CPUs this process may use: affinity mask and cgroup quota, never OMP_NUM_THREADS (launchers set that to 1).
std::size_t usable_cpus();

}  // namespace strata
