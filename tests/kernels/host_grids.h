// Grids of several sizes, in turn, for kernels that run on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "kernels/launch.h"

namespace strata::test {

class HostGrids {
 public:
  ~HostGrids() { kernels::host_grid_threads = before_; }
  // The following launches have another grid than those before.
  void next() { kernels::host_grid_threads = kThreads[next_++ % std::size(kThreads)]; }

 private:
  // From less than a warp to more threads than work; odd ones run backwards.
  static constexpr std::int64_t kThreads[] = {1, 2, 31, 64, 97, 256, 1001};

  const std::int64_t before_ = kernels::host_grid_threads;
  std::size_t next_ = 0;
};

}  // namespace strata::test
