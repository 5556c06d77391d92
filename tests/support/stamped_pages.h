// Pages by index and by stamp, for the tests of the store.
#pragma once

#include <gtest/gtest.h>

#include <thread>

#include "support/manual_executor.h"
#include "support/store_rig.h"

namespace strata::test {

inline constexpr std::uint64_t kFloatsPerPage = kPageBytes / sizeof(float);

inline offload::PieceId piece(offload::ShardId shard, std::uint32_t index) {
  return {shard, index};
}

inline std::shared_ptr<const offload::Schedule> cyclic(offload::ShardId shard, std::uint32_t pieces,
                                                       offload::Access access, const char* mode = "train") {
  std::vector<offload::ScheduledAccess> accesses;
  for (std::uint32_t p = 0; p < pieces; ++p) accesses.push_back({piece(shard, p), access});
  return std::make_shared<offload::Schedule>(mode, std::move(accesses));
}

inline void write(offload::ShardStore& store, offload::PieceId id, std::uint64_t value) {
  const offload::Pin pin = store.acquire(id, offload::Access::Write);
  stamp(pin.wait(), value);
}

inline bool reads_as(offload::ShardStore& store, offload::PieceId id, std::uint64_t value) {
  const offload::Pin pin = store.acquire(id, offload::Access::Read);
  return has_stamp(pin.wait(), value);
}

// One step of `schedule`: pages that are read must hold what the oracle says, pages that are written get a new value.
inline void run_step(offload::ShardStore& store, const offload::Schedule& schedule, std::uint64_t step) {
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const offload::ScheduledAccess& access = schedule.at(i);
    const offload::Pin pin = store.acquire(access.piece, access.access);
    const std::span<std::byte> bytes = pin.wait();
    const std::uint64_t id = access.piece.shard.index * 1000 + access.piece.piece;
    if (offload::reads(access.access)) {
      ASSERT_TRUE(has_stamp(bytes, step * 100000 + id)) << "piece " << access.piece.piece << " in step " << step;
    }
    if (offload::writes(access.access)) stamp(bytes, (step + 1) * 100000 + id);
  }
}

inline void initialize(offload::ShardStore& store, offload::ShardId shard) {
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) write(store, piece(shard, p), shard.index * 1000 + p);
}

// Waits until `executor` has something to run; the other thread's call must come there.
inline void await_task(const ManualExecutor& executor) {
  while (executor.pending() == 0) std::this_thread::yield();
}

}  // namespace strata::test
