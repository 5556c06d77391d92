#include "comm/c10d_device_group.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <system_error>
#include <utility>

#include "comm/c10d_text.h"
#include "comm/connection_lost.h"
#include "core/error.h"
#include "core/log.h"

namespace strata::comm {

DeviceGroup::DeviceGroup(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank, std::chrono::milliseconds timeout)
    : backend_(std::move(backend)), rank_(rank), timeout_(timeout) {}

DeviceGroup::~DeviceGroup() = default;

void DeviceGroup::begin(std::string_view what, std::size_t bytes) {
  require_sound();
  const std::lock_guard lock(mutex_);
  latest_what_ = what;
  latest_bytes_ = bytes;
}

void DeviceGroup::throw_not_queued(const std::exception& why) {
  const std::lock_guard lock(mutex_);
  throw CommError(latest() + ": " + brief(why.what()));
}

std::string DeviceGroup::latest() const {
  return std::string(latest_what_) + " of " + std::to_string(latest_bytes_) + " bytes";
}

void DeviceGroup::require_sound() {
  const std::lock_guard lock(mutex_);
  if (aborted_) std::rethrow_exception(aborted_);
  if (shut_down_) return;
  const c10d::ErrorType error = backend_->getError();
  if (error == c10d::ErrorType::SUCCESS) return;
  const std::string which =
      "a collective on the GPU of rank " + std::to_string(rank_) + " (" + latest() + ", or one before it) ";
  if (error == c10d::ErrorType::TIMEOUT) {
    throw CommError(which + "has not ended within " + seconds_text(timeout_) +
                    " (collective_timeout): a rank is stopped, busy, or at another collective");
  }
  // Whether another rank is the cause NCCL does not say; the reason of the job's first failure is worth waiting for.
  throw ConnectionLost(which + (error == c10d::ErrorType::REMOTE_ERROR ? "has failed on another rank" : "has failed") +
                       ": NCCL_DEBUG=WARN makes NCCL say why");
}

bool DeviceGroup::note_abort(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_ || shut_down_) return false;
  aborted_ = reason;
  return true;
}

void DeviceGroup::end_by_force() {
  try {
    // NCCL gives the thread back the device that it had, which makes a context there.
    const c10::OptionalDeviceGuard device(backend_->getBoundDeviceId());
    backend_->abort();
  } catch (const std::exception& e) {  // the reason of the abort is what counts
    log::warning("NCCL does not end: " + brief(e.what()));
  }
}

void DeviceGroup::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_ || shut_down_) return;
    shut_down_ = true;
  }
  try {
    backend_->shutdown();
  } catch (const std::exception& e) {  // the work is done
    log::warning("NCCL does not end: " + brief(e.what()));
  }
}

std::shared_ptr<DeviceGroup> DeviceGroups::add(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank,
                                               std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  return groups_.emplace_back(std::make_shared<DeviceGroup>(std::move(backend), rank, timeout));
}

void DeviceGroups::require_sound() {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) group->require_sound();
}

void DeviceGroups::abort(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    if (!group->note_abort(reason)) continue;
    try {
      aborting_.emplace_back([group] { group->end_by_force(); });
    } catch (const std::system_error&) {  // no thread is left
      group->end_by_force();
    }
  }
}

void DeviceGroups::wait_for_aborts() {
  std::vector<std::thread> aborting;
  {
    const std::lock_guard lock(mutex_);
    aborting.swap(aborting_);
  }
  for (std::thread& thread : aborting) thread.join();
}

void DeviceGroups::shut_down() {
  std::vector<std::shared_ptr<DeviceGroup>> groups;  // without the lock: it may block
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  for (const auto& group : groups) group->shut_down();
}

}  // namespace strata::comm
