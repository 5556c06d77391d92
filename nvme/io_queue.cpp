#include "nvme/io_queue.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "nvme/free_space.h"

namespace strata::nvme {

struct IoQueue::Transfer {
  IoTransfer what;
  EventSource source;
  std::uint64_t next = 0;  // where the next request starts; == what.bytes when all are cut
  std::uint64_t moved = 0;
  std::size_t in_flight = 0;
  std::exception_ptr error;  // the first failure

  bool cut_up() const { return next == what.bytes; }
  void fail(std::exception_ptr failure) {
    if (!error) error = std::move(failure);
    next = what.bytes;
  }
};

struct IoQueue::Slot {
  std::shared_ptr<Transfer> transfer;
  std::uint64_t begin = 0;  // [begin, end) of the transfer is still to be moved
  std::uint64_t end = 0;
  unsigned stalls = 0;
  Trace::Clock::time_point sent{};  // of the request in flight; only when there is a trace
};

namespace {

std::exception_ptr io_error(const IoTransfer& transfer, std::uint64_t at, std::uint64_t wanted, int error,
                            const std::string& hint) {
  const Extent& extent = *transfer.extent;
  return std::make_exception_ptr(
      IoError({error, transfer.op == IoOp::Read ? "read" : "write", extent.directory + " (blob " + extent.name + ")",
               transfer.offset + at, wanted, hint}));
}

// What a failed request says beside errno: how far the transfer came and, on a full disk, how much is free.
std::string hint_for(int error, const IoTransfer& transfer, std::uint64_t moved) {
  std::string hint = std::to_string(moved) + " of " + std::to_string(transfer.bytes) + " bytes were moved";
  if (error == ENOSPC || error == EDQUOT) {
    hint += "; " + no_space_hint(transfer.extent->fd, transfer.extent->directory, transfer.bytes - moved);
  }
  return hint;
}

}  // namespace

IoQueue::IoQueue(const BackendMaker& make, IoQueueOptions options, DriveMeter& meter)
    : options_(std::move(options)), meter_(meter), turns_(options_.burst_bytes) {
  STRATA_EXPECTS(options_.depth > 0, "queue depth must be at least 1");
  STRATA_EXPECTS(
      options_.block_bytes > 0 && options_.block_bytes % kPageBytes == 0 && options_.block_bytes <= kMaxRequestBytes,
      "block size must be a multiple of 4096 and at most 1 GiB, got " + std::to_string(options_.block_bytes));
  if (options_.trace != nullptr) {
    for (const IoOp op : {IoOp::Read, IoOp::Write}) {
      trace_rows_[static_cast<std::size_t>(op)] =
          options_.trace->row(options_.trace_name + (op == IoOp::Read ? " read" : " write"), Trace::Row::Overlapping);
    }
  }
  slots_.resize(options_.depth);
  for (std::size_t slot = options_.depth; slot-- > 0;) free_slots_.push_back(slot);
  std::exception_ptr failure;
  EventSource source;
  const Event started = source.event();
  // A ring must be made, and its buffers registered, by the thread that uses it.
  thread_ = std::thread([this, &make, &failure, &source] { run(make, failure, std::move(source)); });
  started.wait();
  if (failure) {
    thread_.join();
    std::rethrow_exception(failure);
  }
}

IoQueue::~IoQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (backend_) backend_->wake();
  }
  thread_.join();
}

Event IoQueue::submit(const IoTransfer& transfer) {
  if (transfer.bytes == 0) return {};
  auto entry = std::make_shared<Transfer>();
  entry->what = transfer;
  entry->source.submit();
  Event event = entry->source.event();
  const std::lock_guard lock(mutex_);
  if (broken_) return Event::failed(broken_);
  inbox_.push_back(std::move(entry));
  backend_->wake();
  return event;
}

void IoQueue::run(const BackendMaker& make, std::exception_ptr& failure, EventSource started) {
  ::pthread_setname_np(::pthread_self(), "strata-io");  // only for debuggers: an error does not matter
  try {
    backend_ = make();
  } catch (...) {
    failure = std::current_exception();
  }
  const bool usable = backend_ != nullptr;
  started.complete();  // `make` and `failure` are gone from here on
  if (!usable) return;
  try {
    loop();
  } catch (...) {
    abandon(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  backend_.reset();
}

void IoQueue::loop() {
  std::vector<IoCompletion> completions(options_.depth);
  for (;;) {
    const bool stopping = take_inbox();
    fill();
    const bool idle = free_slots_.size() == slots_.size();
    if (stopping && idle) return;
    const std::size_t count = backend_->complete(completions);
    for (std::size_t i = 0; i < count; ++i) finish(completions[i]);
  }
}

bool IoQueue::take_inbox() {
  const std::lock_guard lock(mutex_);
  for (std::shared_ptr<Transfer>& transfer : inbox_) {
    Lane lane = kWrite;
    if (transfer->what.op == IoOp::Read) lane = transfer->what.urgency == IoUrgency::Demand ? kDemand : kPrefetch;
    waiting_[lane].push_back(std::move(transfer));
  }
  inbox_.clear();
  return stopping_;
}

void IoQueue::fill() {
  while (!free_slots_.empty()) {
    const IoWaiting waiting = this->waiting();
    if (!waiting.any()) return;
    // Refused: others use the drive too, and a request of this queue is in flight, after which it asks again.
    if (options_.tokens != nullptr && !options_.tokens->take()) return;
    std::shared_ptr<Transfer> transfer = pick(waiting);
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    const std::uint64_t begin = transfer->next;
    transfer->next = std::min<std::uint64_t>(begin + options_.block_bytes, transfer->what.bytes);
    ++transfer->in_flight;
    const std::uint64_t end = transfer->next;
    turns_.sent(transfer->what.op, end - begin);
    slots_[slot] = {std::move(transfer), begin, end, 0};
    send(slot);
  }
}

IoWaiting IoQueue::waiting() {
  for (Waiting& lane : waiting_) {
    while (!lane.empty() && lane.front()->cut_up()) lane.pop_front();
  }
  return {.demand = !waiting_[kDemand].empty(),
          .prefetch = !waiting_[kPrefetch].empty(),
          .write = !waiting_[kWrite].empty()};
}

// Requires: something waits, as `waiting` says.
std::shared_ptr<IoQueue::Transfer> IoQueue::pick(const IoWaiting& waiting) {
  if (turns_.next(waiting) == IoOp::Write) return waiting_[kWrite].front();
  return waiting_[waiting.demand ? kDemand : kPrefetch].front();
}

void IoQueue::send(std::size_t index) {
  Slot& slot = slots_[index];
  const IoTransfer& what = slot.transfer->what;
  if (options_.trace != nullptr) slot.sent = Trace::Clock::now();
  meter_.begin(what.op);
  backend_->submit({what.op, what.extent->fd, what.extent->offset + what.offset + slot.begin, what.data + slot.begin,
                    static_cast<std::size_t>(slot.end - slot.begin), index});
}

void IoQueue::finish(const IoCompletion& completion) {
  STRATA_EXPECTS(completion.token < slots_.size() && slots_[completion.token].transfer,
                 "the backend completed a request that is not in flight: " + std::to_string(completion.token));
  Slot& slot = slots_[completion.token];
  Transfer& transfer = *slot.transfer;
  const std::size_t moved = examine(slot, completion.result);
  meter_.end(transfer.what.op, moved);
  if (options_.trace != nullptr) record(slot, moved);
  slot.begin += moved;
  transfer.moved += moved;
  if (slot.begin == slot.end || transfer.error) {
    settle(completion.token);
    return;
  }
  slot.stalls = moved > 0 ? 0 : slot.stalls + 1;
  if (slot.stalls > kMaxStalls) {
    const int error = completion.result < 0 ? static_cast<int>(-completion.result) : EIO;
    transfer.fail(io_error(transfer.what, slot.begin, slot.end - slot.begin, error,
                           "no progress in " + std::to_string(kMaxStalls) + " attempts"));
    settle(completion.token);
    return;
  }
  // Out of kernel memory, most likely: give it a moment after the first attempts.
  if (slot.stalls > 16) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  send(completion.token);
}

// Bytes moved for good; 0 asks for another attempt. Fails the slot's transfer on a real error.
std::size_t IoQueue::examine(const Slot& slot, std::int64_t result) {
  Transfer& transfer = *slot.transfer;
  const std::uint64_t wanted = slot.end - slot.begin;
  if (result == -EAGAIN || result == -EINTR) return 0;
  if (result < 0) {
    const int error = static_cast<int>(-result);
    transfer.fail(io_error(transfer.what, slot.begin, wanted, error, hint_for(error, transfer.what, transfer.moved)));
    return 0;
  }
  const auto moved = static_cast<std::uint64_t>(result);
  if (moved == 0 && transfer.what.op == IoOp::Read) {
    transfer.fail(
        io_error(transfer.what, slot.begin, wanted, 0, "unexpected end of file: was the swap file truncated?"));
    return 0;
  }
  if (moved > wanted) {
    transfer.fail(
        io_error(transfer.what, slot.begin, wanted, EIO, "the kernel says it moved " + std::to_string(moved)));
    return 0;
  }
  if (moved == wanted) return static_cast<std::size_t>(moved);
  // A direct request can only resume at an aligned place: part of the bytes is moved a second time.
  return static_cast<std::size_t>(moved / transfer.what.extent->alignment * transfer.what.extent->alignment);
}

void IoQueue::record(const Slot& slot, std::size_t moved) {
  const IoTransfer& what = slot.transfer->what;
  options_.trace->add({.row = trace_rows_[static_cast<std::size_t>(what.op)],
                       .name = what.extent->name,
                       .begin = slot.sent,
                       .end = Trace::Clock::now(),
                       .bytes = moved});
}

void IoQueue::settle(std::size_t index) {
  const std::shared_ptr<Transfer> transfer = std::move(slots_[index].transfer);
  free_slots_.push_back(index);
  if (options_.tokens != nullptr) options_.tokens->give_back();
  if (--transfer->in_flight > 0 || !transfer->cut_up()) return;
  if (transfer->error) {
    transfer->source.fail(transfer->error);
  } else {
    transfer->source.complete();
  }
}

void IoQueue::abandon(std::exception_ptr error) {
  std::set<std::shared_ptr<Transfer>> lost;  // a set: a transfer may hold several slots and wait for more
  {
    const std::lock_guard lock(mutex_);
    broken_ = error;
    backend_.reset();  // ends what is in flight, before anybody is told that the buffers are free
    lost.insert(inbox_.begin(), inbox_.end());
    inbox_.clear();
  }
  for (Slot& slot : slots_) {
    if (!slot.transfer) continue;
    meter_.end(slot.transfer->what.op, 0);
    if (options_.tokens != nullptr) options_.tokens->give_back();
    lost.insert(std::move(slot.transfer));
  }
  for (const Waiting& waiting : waiting_) {
    // Those that are cut up either hold a slot or were settled.
    std::copy_if(waiting.begin(), waiting.end(), std::inserter(lost, lost.end()),
                 [](const std::shared_ptr<Transfer>& transfer) { return !transfer->cut_up(); });
  }
  for (const std::shared_ptr<Transfer>& transfer : lost) {
    transfer->source.fail(transfer->error ? transfer->error : error);
  }
}

}  // namespace strata::nvme
