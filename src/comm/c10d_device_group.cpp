#include "comm/c10d_device_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "comm/c10d_text.h"
#include "comm/connection_lost.h"
#include "core/error.h"
#include "core/log.h"

namespace strata::comm {

DeviceGroup::DeviceGroup(c10::intrusive_ptr<c10d::Backend> backend, std::size_t rank, std::chrono::milliseconds timeout)
    : backend_(std::move(backend)), rank_(rank), timeout_(timeout) {}

DeviceGroup::~DeviceGroup() = default;

void DeviceGroup::collective(std::string_view what, std::size_t bytes,
                             const std::function<void(c10d::Backend&)>& queue) {
  require_sound();
  const std::string named = std::string(what) + " of " + std::to_string(bytes) + " bytes";
  {
    const std::lock_guard lock(mutex_);
    latest_ = named;
  }
  try {
    queue(*backend_);
  } catch (const std::exception& e) {
    throw CommError(named + ": " + brief(e.what()));
  }
}

void DeviceGroup::require_sound() {
  const std::lock_guard lock(mutex_);
  if (aborted_) std::rethrow_exception(aborted_);
  if (shut_down_) return;
  const c10d::ErrorType error = backend_->getError();
  if (error == c10d::ErrorType::SUCCESS) return;
  const std::string which =
      "a collective on the GPU of rank " + std::to_string(rank_) + " (" + latest_ + ", or one before it) ";
  if (error == c10d::ErrorType::TIMEOUT) {
    throw CommError(which + "has not ended within " + seconds_text(timeout_) +
                    " (collective_timeout): a rank is stopped, busy, or at another collective");
  }
  throw ConnectionLost(which + (error == c10d::ErrorType::REMOTE_ERROR ? "has failed on another rank"
                                                                       : "has lost its connection to another rank"));
}

void DeviceGroup::abort(const std::exception_ptr& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_ || shut_down_) return;
    aborted_ = reason;
  }
  try {
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

std::vector<std::shared_ptr<DeviceGroup>> DeviceGroups::all() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void DeviceGroups::require_sound() {
  for (const auto& group : all()) group->require_sound();
}

void DeviceGroups::abort(const std::exception_ptr& reason) {
  for (const auto& group : all()) group->abort(reason);
}

void DeviceGroups::shut_down() {
  for (const auto& group : all()) group->shut_down();
}

bool DeviceGroups::empty() {
  return all().empty();
}

}  // namespace strata::comm
