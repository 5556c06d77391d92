// Process groups of c10d whose transfers a device runs: NCCL's. Whether what they have run is sound, and how they end.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
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

  // Queues a collective through queue(backend). `what` is a text that stays. Throws: CommError for what is queued
  // before, or cannot be queued; an abort's reason.
  template <typename Queue>
  void collective(std::string_view what, std::size_t bytes, Queue queue) {
    begin(what, bytes);
    try {
      queue(*backend_);
    } catch (const std::exception& e) {
      throw_not_queued(e);
    }
  }
  // Any thread. Throws: CommError where one of the collectives may have ended without having done its work; an abort's
  // reason.
  void require_sound();

  // Of DeviceGroups. Any thread; the first of shut_down() and note_abort() counts, and the other does nothing.
  // From note_abort() on require_sound() throws `reason`; where it returns true, end_by_force() is due once.
  bool note_abort(const std::exception_ptr& reason);
  void end_by_force();
  void shut_down();

 private:
  void begin(std::string_view what, std::size_t bytes);
  [[noreturn]] void throw_not_queued(const std::exception& why);
  std::string latest() const;  // requires mutex_

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::size_t rank_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;
  std::exception_ptr aborted_;    // guarded by mutex_: why
  bool shut_down_ = false;        // guarded by mutex_
  std::string_view latest_what_;  // guarded by mutex_: what was queued last
  std::size_t latest_bytes_ = 0;  // guarded by mutex_
};

// Those of a job. Thread-safe.
class DeviceGroups {
 public:
  DeviceGroups() = default;
  ~DeviceGroups() { wait_for_aborts(); }
  DeviceGroups(const DeviceGroups&) = delete;
  DeviceGroups& operator=(const DeviceGroups&) = delete;

  std::shared_ptr<DeviceGroup> add(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank,
                                   std::chrono::milliseconds timeout);
  // As of a DeviceGroup, for all that were added.
  void require_sound();
  // Returns at once: each group is ended by a thread of its own. NCCL may wait for a kernel of one group to end
  // another, so that in turns they would never end, and for ever where the driver does not answer.
  void abort(const std::exception_ptr& reason);
  void wait_for_aborts();
  // In the order in which they were added; every rank does. It may block for a rank that does not come, and an abort
  // does not end that: c10d would wait for the lock that is held here.
  void shut_down();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<DeviceGroup>> groups_;  // guarded by mutex_
  std::vector<std::thread> aborting_;                 // guarded by mutex_
};

}  // namespace strata::comm
