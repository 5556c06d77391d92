// Communicators over a fake of NCCL.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/c10d_communicator.h"
#include "comm/c10d_device_group.h"
#include "comm/c10d_device_ops.h"
#include "comm/fake_nccl.h"
#include "comm/gloo_backend.h"
#include "core/host_device.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"

namespace strata::test {

// Ranks of a job, threads of this process, whose communicators work over FakeNccl. They are ranks 10, 11, ... in
// messages.
class DeviceRanks {
 public:
  // `late`: after so long the fake's watchdog ends a collective; zero: after `timeout`, which is that of messages.
  explicit DeviceRanks(std::size_t world, std::chrono::milliseconds timeout = std::chrono::minutes(2),
                       std::chrono::milliseconds late = {})
      : world_(world), timeout_(timeout), late_(late.count() > 0 ? late : timeout), devices_(world) {
    for (auto& devices : devices_) devices = std::make_shared<comm::DeviceGroups>();
  }

  std::vector<std::shared_ptr<Communicator>> make(const std::string& name = "all") {
    static PlainMath math;
    static Budget budget("staging", std::uint64_t{4} << 30);
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::shared_ptr<Communicator>> ranks(world_);
    run_ranks(world_, [&](std::size_t r) {
      const auto backend =
          c10::make_intrusive<FakeNcclBackend>(*nccl, name, static_cast<int>(r), static_cast<int>(world_), late_);
      comm::device_connect(*backend);
      comm::C10dGroups groups{
          .queued = backend,
          .blocking = comm::make_gloo_backend(store, r, world_, {.timeout = std::chrono::minutes(1)}),
          .timeout = timeout_,
          .devices = devices_[r]};
      for (std::size_t i = 0; i < world_; ++i) groups.ranks.push_back(10 + i);
      ranks[r] = comm::make_c10d_communicator(std::move(groups), math,
                                              allocate_host(budget, comm::kStagingBytes, MemoryTag::Staging));
    });
    return ranks;
  }
  comm::DeviceGroups& devices(std::size_t rank) { return *devices_[rank]; }

  const std::shared_ptr<FakeNccl> nccl = std::make_shared<FakeNccl>();

 private:
  const std::size_t world_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds late_;
  std::vector<std::shared_ptr<comm::DeviceGroups>> devices_;
};

}  // namespace strata::test
