#include "core/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"
#include "core/fnv.h"
#include "core/log.h"
#include "core/machine_id.h"
#include "core/memory_nodes.h"
#include "core/parallel.h"

namespace strata {
namespace {

std::string text_of(const CpuList& cpus) {
  std::string text;
  for (const int cpu : cpus) text += std::to_string(cpu) + ",";
  return text;
}

// Parts of `items` that follow each other; with more parts than items several parts are one and the same item.
std::pair<std::size_t, std::size_t> part(std::size_t items, std::size_t index, std::size_t count) {
  const std::size_t begin = index * items / count;
  return {begin, std::max((index + 1) * items / count, begin + 1)};
}

}  // namespace

CpuList cpu_share(const CpuList& cpus, std::size_t index, std::size_t count, std::size_t granted) {
  STRATA_EXPECTS(index < count, "share " + std::to_string(index) + " of " + std::to_string(count));
  STRATA_EXPECTS(!cpus.empty(), "no CPU to share");
  std::vector<CpuList> units = cores_in_order(cpus);
  if (units.size() < count) {
    // Threads of a core are better than turns on a whole one.
    std::vector<CpuList> threads;
    for (const CpuList& core : units) {
      for (const int cpu : core) threads.push_back({cpu});
    }
    units = std::move(threads);
  }
  const auto [begin, end] = part(units.size(), index, count);
  CpuList share;
  for (std::size_t i = begin; i < end; ++i) share.insert(share.end(), units[i].begin(), units[i].end());
  share.resize(std::min(share.size(), std::max<std::size_t>(granted / count, 1)));
  std::sort(share.begin(), share.end());
  return share;
}

CpuList cpu_share(Communicator& comm) {
  const CpuList mine = allowed_cpus();
  constexpr std::size_t kValues = 2;
  std::vector<double> all(comm.world() * kValues);
  const std::size_t own = comm.rank() * kValues;
  all[own] = Fnv1a(machine_id()).as_double();
  all[own + 1] = Fnv1a(text_of(mine)).as_double();
  comm.all_gather_values(all);
  std::size_t index = 0, count = 0;
  for (std::size_t rank = 0; rank < comm.world(); ++rank) {
    if (all[rank * kValues] != all[own] || all[rank * kValues + 1] != all[own + 1]) continue;
    if (rank < comm.rank()) ++index;
    ++count;
  }
  return mine.empty() || count == 1 ? mine : cpu_share(mine, index, count, usable_cpus());
}

void bind_process(const CpuList& cpus) {
  if (cpus.empty()) return;
  const auto most = static_cast<std::size_t>(*std::max_element(cpus.begin(), cpus.end()));
  std::vector<cpu_set_t> mask(most / (8 * sizeof(cpu_set_t)) + 1);
  const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, mask.data());
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, mask.data());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string name = task.path().filename();
    int thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    // ESRCH: it has just ended.
    if (sched_setaffinity(thread, bytes, mask.data()) == 0 || errno == ESRCH) continue;
    log::warning(std::string("the kernel refuses to bind this rank to its CPUs (") + std::strerror(errno) +
                 "): ranks of this machine will take each other's");
    return;
  }
}

}  // namespace strata
