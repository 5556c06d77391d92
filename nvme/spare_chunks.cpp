#include "nvme/spare_chunks.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace strata::nvme {

SpareChunks::SpareChunks(std::vector<SwapFile*> files, std::uint64_t bytes, Budget& budget)
    : bytes_(bytes), budget_(budget) {
  for (SwapFile* file : files) {
    paths_.emplace_back();
    paths_.back().file = file;
  }
  if (files.size() > 1) thread_ = std::thread([this] { run(); });
}

void SpareChunks::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<Place> SpareChunks::exchange(Place left, std::size_t path) {
  const std::lock_guard lock(mutex_);
  Path& to = paths_[path];
  if (to.ready.empty()) {
    if (to.rest > 0) {
      --to.rest;
    } else if (!to.wanted) {
      to.wanted = true;
      changed_.notify_all();
    }
    return std::nullopt;
  }
  // All places are equally large, so the share of the one that is handed out pays for the one that comes back.
  Owned& spare = to.ready.back();
  const Place taken = std::exchange(spare.place, left);
  left_.push_back(std::move(spare));
  to.ready.pop_back();
  changed_.notify_all();
  return taken;
}

SpareChunks::Path* SpareChunks::wanted_path() {
  const auto found = std::find_if(paths_.begin(), paths_.end(), [](const Path& path) { return path.wanted; });
  return found == paths_.end() ? nullptr : &*found;
}

void SpareChunks::run() {
  static_cast<void>(::pthread_setname_np(::pthread_self(), "strata-space"));  // only for debuggers
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !left_.empty() || wanted_path() != nullptr; });
    if (stopping_) return;
    if (!left_.empty()) {  // first, because it makes room in the budget
      Owned left = std::move(left_.back());
      left_.pop_back();
      lock.unlock();
      give_back(std::move(left));
    } else {
      const std::size_t path = static_cast<std::size_t>(wanted_path() - paths_.data());
      lock.unlock();
      make_ready(path);
    }
    lock.lock();
  }
}

void SpareChunks::give_back(Owned left) {
  Path& path = paths_[left.place.path];
  if (path.file->give_back(left.place.offset, bytes_)) return;  // and its share of the budget with it
  const std::lock_guard lock(mutex_);
  path.ready.push_back(std::move(left));  // the space is still taken: another chunk may have it
}

void SpareChunks::make_ready(std::size_t index) {
  Path& path = paths_[index];
  std::optional<Owned> made;
  try {
    if (std::optional<Reservation> reservation = budget_.try_reserve(bytes_, MemoryTag::OptimState)) {
      made = Owned{{index, path.file->take(bytes_, "moved chunk")}, std::move(*reservation)};
    }
  } catch (const std::exception&) {  // most likely a full disk: chunks stay where they are
  }
  const std::lock_guard lock(mutex_);
  path.wanted = false;
  if (made) {
    path.ready.push_back(std::move(*made));
  } else {
    path.rest = kRest;
  }
}

}  // namespace strata::nvme
