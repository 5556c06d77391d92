// Orders, splits and finishes transfers on one backend.
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/blob_store.h"
#include "core/event.h"
#include "core/trace.h"
#include "nvme/drive_tokens.h"
#include "nvme/extent.h"
#include "nvme/io_backend.h"
#include "nvme/io_meter.h"
#include "nvme/io_turns.h"

namespace strata::nvme {

// A contiguous run of bytes of one extent, of any length. With a direct file the offset and the address are multiples
// of extent->alignment and so is the length. Extent and data must outlive the transfer's event.
struct IoTransfer {
  IoOp op = IoOp::Read;
  const Extent* extent = nullptr;
  std::uint64_t offset = 0;   // from the start of the extent
  std::byte* data = nullptr;  // only read when op is Write
  std::uint64_t bytes = 0;
  IoUrgency urgency = IoUrgency::Demand;  // of reads
};

struct IoQueueOptions {
  // Of the largest request; a multiple of kPageBytes, at most kMaxRequestBytes.
  std::size_t block_bytes = std::size_t{1} << 20;
  unsigned depth = 32;               // requests in flight
  std::uint64_t burst_bytes = 0;     // reads and writes take turns of about this; 0 = they are mixed
  DriveTokens* tokens = nullptr;     // one for each request in flight; must outlive the queue; null = none needed
  Trace* trace = nullptr;            // records each request; must outlive the queue; null = none
  std::string trace_name = "nvme0";  // of the drive: its rows are "nvme0 read" and "nvme0 write"
};

// One thread that owns a backend. submit() from any thread, completion callbacks included; it never blocks on I/O.
// Order: demand reads, then prefetch reads, oldest first; writes, oldest first; IoTurns says which of the two is next.
// Short results resume where they stopped; EAGAIN and EINTR are tried again. An event completes only when none of its
// requests is in flight, also when it fails. The destructor finishes everything that was submitted.
class IoQueue {
 public:
  static constexpr unsigned kMaxStalls = 1000;  // attempts in a row that move nothing before a request fails

  using BackendMaker = std::function<std::unique_ptr<IoBackend>()>;

  // `make` runs on the queue's thread. Throws: what `make` throws.
  IoQueue(const BackendMaker& make, IoQueueOptions options, DriveMeter& meter);
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  Event submit(const IoTransfer& transfer);

 private:
  struct Transfer;
  struct Slot;
  enum Lane : std::size_t { kDemand, kPrefetch, kWrite, kLanes };
  using Waiting = std::deque<std::shared_ptr<Transfer>>;

  void run(const BackendMaker& make, std::exception_ptr& failure, EventSource started);
  void loop();
  bool take_inbox();
  void fill();
  IoWaiting waiting();
  std::shared_ptr<Transfer> pick(const IoWaiting& waiting);
  void send(std::size_t slot);
  void finish(const IoCompletion& completion);
  std::size_t examine(const Slot& slot, std::int64_t result);
  void record(const Slot& slot, std::size_t moved);
  void settle(std::size_t slot);
  void abandon(std::exception_ptr error);

  const IoQueueOptions options_;
  DriveMeter& meter_;
  std::array<std::uint32_t, 2> trace_rows_{};  // indexed by IoOp

  std::mutex mutex_;
  std::vector<std::shared_ptr<Transfer>> inbox_;  // guarded by mutex_
  bool stopping_ = false;                         // guarded by mutex_
  std::exception_ptr broken_;                     // guarded by mutex_; set once the backend failed
  std::unique_ptr<IoBackend> backend_;            // set before the constructor returns; reset under mutex_

  // Of the queue's thread only:
  std::array<Waiting, kLanes> waiting_;
  IoTurns turns_;
  std::vector<Slot> slots_;  // a request's token is its index here
  std::vector<std::size_t> free_slots_;

  std::thread thread_;
};

}  // namespace strata::nvme
