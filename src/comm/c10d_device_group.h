// Process groups of c10d whose transfers a device runs: NCCL's. Whether what they have run is sound, and how they end.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Backend;
}  // namespace c10d

namespace strata::comm {

// [Note: what a device has run] A collective that a device runs cannot fail in its stream. When one is late, or a rank
// is lost, c10d's watchdog first sets the group's error and then aborts NCCL's communicator; the collective's kernel
// ends without having moved its bytes, its event is complete, and the stream goes on with wrong ones. In this order
// lies the sound point: whoever has seen a later event of the stream and then finds no error, has right bytes. So every
// call that blocks asks for errors first, of all groups of the job, before it gives anything to others. It costs a
// mutex. That is enough, because nothing leaves the device for good but behind such a call, made once its stream has
// been waited for: a loss and a norm are summed over ranks before they are shown or used for an update, a token is
// broadcast, and a checkpoint begins and ends with on_every_rank(). Wrong bytes that a step writes into homes before
// (memory, a swap file) go with the run, which ends. What a rank receives in such a call comes from ranks
// that have asked as well.
class DeviceGroup {
 public:
  // `rank`: in the job, for messages.
  DeviceGroup(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank, std::chrono::milliseconds timeout);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  // Queues a collective through queue(backend). Throws: CommError for what is queued before, or cannot be queued.
  void collective(std::string_view what, std::size_t bytes, const std::function<void(c10d::Backend&)>& queue);
  // Any thread. Throws: CommError where one of the collectives may have ended without having done its work.
  void require_sound();

  // Any thread; the first of the two counts. An abort ends what is queued; require_sound() throws `reason` from then
  // on. shut_down() is for a good end: every rank calls it, when the streams are past all collectives. It may block for
  // a rank that does not come, and an abort does not end that: c10d would wait for the lock that shut_down() holds.
  void abort(const std::exception_ptr& reason);
  void shut_down();

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::size_t rank_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;
  std::exception_ptr aborted_;  // guarded by mutex_: why
  bool shut_down_ = false;      // guarded by mutex_
  std::string latest_;          // guarded by mutex_: what was queued last
};

// Those of a job. Thread-safe.
class DeviceGroups {
 public:
  std::shared_ptr<DeviceGroup> add(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank,
                                   std::chrono::milliseconds timeout);
  // As of a DeviceGroup, for all that were added. shut_down() goes in the order in which they were.
  void require_sound();
  void abort(const std::exception_ptr& reason);
  void shut_down();
  bool empty();

 private:
  std::vector<std::shared_ptr<DeviceGroup>> all();

  std::mutex mutex_;
  std::vector<std::shared_ptr<DeviceGroup>> groups_;  // guarded by mutex_
};

}  // namespace strata::comm
