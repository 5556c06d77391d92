#include <chrono>

#include "offload/shard_store.h"

namespace strata::offload {

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release();
    store_ = std::exchange(other.store_, nullptr);
    piece_ = other.piece_;
    access_ = other.access_;
    ready_ = std::exchange(other.ready_, Event());
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

std::span<std::byte> Pin::wait() const {
  if (!ready_.ready() && store_ != nullptr) {
    const auto start = std::chrono::steady_clock::now();
    if (const auto& on_blocked = store_->options_.on_blocked) {
      while (!ready_.ready()) on_blocked();
    }
    const std::exception_ptr error = ready_.wait_noexcept();
    const std::chrono::duration<double> blocked = std::chrono::steady_clock::now() - start;
    const ShardStore::Lock lock(store_->mutex_);
    store_->stats_.stall_seconds += blocked.count();
    if (error) std::rethrow_exception(error);
  }
  ready_.wait();
  return bytes_;
}

void Pin::release() noexcept {
  if (ShardStore* store = std::exchange(store_, nullptr)) store->unpin(piece_, access_);
  bytes_ = {};
}

void Pin::release_after(const Event& event) noexcept {
  ShardStore* store = std::exchange(store_, nullptr);
  bytes_ = {};
  if (store == nullptr) return;
  {
    const ShardStore::Lock lock(store->mutex_);
    ++store->late_pins_;
  }
  event.on_complete([store, piece = piece_, access = access_](const std::exception_ptr&) {
    store->unpin(piece, access);
    const ShardStore::Lock lock(store->mutex_);
    --store->late_pins_;
    store->changed_.notify_all();
  });
}

}  // namespace strata::offload
