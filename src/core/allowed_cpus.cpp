// By itself: the thread pool needs no more of cpu_share.h, and builds for other processors have no log.
#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "core/cpu_share.h"

namespace strata {
namespace {

// cpu_set_t has room for 1024 CPUs; the kernel answers EINVAL when it needs a larger set (sched_getaffinity(2)).
constexpr std::size_t kMostSets = 64;

}  // namespace

CpuList allowed_cpus() {
  CpuList cpus;
  for (std::size_t sets = 1; sets <= kMostSets; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const std::size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      for (std::size_t cpu = 0; cpu < 8 * bytes; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask.data())) cpus.push_back(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return cpus;
}

}  // namespace strata
