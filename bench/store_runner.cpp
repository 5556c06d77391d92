#include "store_runner.h"

#include <algorithm>
#include <chrono>

#include "core/bytes.h"

namespace strata::bench {
namespace {

// Blobs are padded to blocks, and checksums may need room of their own.
std::uint64_t disk_bytes(std::uint64_t blob_bytes) {
  return 2 * (blob_bytes + blob_bytes / 64 + (std::uint64_t{1} << 20));
}

}  // namespace

const char* name_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::Write:
      return "write";
    case Pattern::Read:
      return "read";
    case Pattern::Mixed:
      return "mixed";
  }
  return "";
}

std::size_t StoreRunner::slots_for(const StoreRunnerOptions& options) {
  const std::uint64_t in_flight = std::uint64_t{options.block_bytes} * options.queue_depth * options.folders.size();
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(4 * ceil_div(in_flight, kTransferBytes), 4, 64));
}

StoreRunner::StoreRunner(const StoreRunnerOptions& options, SlotPool& slots)
    : bytes_(options.bytes),
      slots_(slots),
      disk_("nvme", disk_bytes(options.bytes)),
      store_({.paths = options.folders,
              .block_bytes = options.block_bytes,
              .queue_depth = options.queue_depth,
              .checksums = options.checksums,
              .regions = {slots.region()},
              .job = options.job,
              .local_ranks = options.ranks},
             disk_),
      blobs_{store_.create("first", bytes_), store_.create("second", bytes_)} {
  for (std::size_t path = 0; path < options.folders.size(); ++path) {
    direct_ = direct_ && store_.mode_of_path(path) == nvme::IoMode::Direct;
  }
}

double StoreRunner::run(Pattern pattern) {
  std::vector<Event> busy(slots_.slots());
  const Clock::time_point start = Clock::now();
  for (std::size_t transfer = 0; transfer * kTransferBytes < bytes_; ++transfer) {
    const std::size_t slot = transfer % slots_.slots();
    busy[slot].wait();
    busy[slot] = move(pattern, transfer, slots_.slot(slot), IoUrgency::Demand);
  }
  when_all(busy).wait();
  return static_cast<double>(bytes_) / std::chrono::duration<double>(Clock::now() - start).count();
}

std::uint64_t StoreRunner::run_between(Pattern pattern, Clock::time_point begin, Clock::time_point end) {
  const std::size_t transfers = bytes_ / kTransferBytes;  // round and round
  std::vector<Event> busy(slots_.slots());
  std::uint64_t completed = 0;
  for (std::size_t transfer = 0;; ++transfer) {
    const std::size_t slot = transfer % slots_.slots();
    busy[slot].wait();
    const Clock::time_point now = Clock::now();
    if (now >= end) break;
    if (now >= begin && transfer >= slots_.slots()) completed += kTransferBytes;
    busy[slot] = move(pattern, transfer % transfers, slots_.slot(slot), IoUrgency::Prefetch);
  }
  when_all(busy).wait();
  return completed;
}

double StoreRunner::read_on_demand(std::span<std::byte> destination) {
  const Clock::time_point start = Clock::now();
  store_.read(blobs_[0], 0, destination, IoUrgency::Demand).wait();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Event StoreRunner::move(Pattern pattern, std::size_t transfer, std::span<std::byte> slot, IoUrgency urgency) {
  const std::uint64_t offset = transfer * kTransferBytes;
  const std::span<std::byte> part = slot.first(std::min<std::uint64_t>(kTransferBytes, bytes_ - offset));
  if (pattern == Pattern::Read || (pattern == Pattern::Mixed && transfer % 2 == 0)) {
    return store_.read(blobs_[0], offset, part, urgency);
  }
  return store_.write(blobs_[pattern == Pattern::Mixed ? 1 : 0], offset, part);
}

}  // namespace strata::bench
