// MemoryBlobStore: a BlobStore in memory that checks what the port asks of its callers.
#pragma once

#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/blob_store.h"
#include "core/error.h"
#include "core/executor.h"

namespace strata::test {

// Without an executor each request is performed and complete when the call returns. With one, each request is one
// posted task: the bytes move when the task runs. A request that conflicts with one in flight, or lies outside its
// blob, throws ContractViolation. Thread-safety: as BlobStore. Must outlive its requests and not its executor.
class MemoryBlobStore final : public BlobStore {
 public:
  // What a blob holds before it is written: a NaN in every floating-point type.
  static constexpr std::byte kUnwritten{0xff};

  MemoryBlobStore() = default;
  explicit MemoryBlobStore(Executor& executor) : executor_(&executor) {}

  BlobId create(std::string name, std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    blobs_.push_back({std::move(name), std::vector<std::byte>(bytes, kUnwritten)});
    return BlobId{static_cast<std::uint32_t>(blobs_.size() - 1)};
  }

  Event read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency) override {
    const Request request{blob.index, offset_bytes, destination.size(), Access::Read};
    return issue(request, [destination](std::byte* stored) {
      if (!destination.empty()) std::memcpy(destination.data(), stored, destination.size());
    });
  }

  Event write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    const Request request{blob.index, offset_bytes, source.size(), Access::Write};
    return issue(request, [source](std::byte* stored) {
      if (!source.empty()) std::memcpy(stored, source.data(), source.size());
    });
  }

  BlobStoreStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  // For the test: how many blobs there are, what one is called, and a copy of what it holds.
  std::size_t blobs() const {
    const std::lock_guard lock(mutex_);
    return blobs_.size();
  }
  std::string name(BlobId blob) const {
    const std::lock_guard lock(mutex_);
    return blobs_.at(blob.index).name;
  }
  std::vector<std::byte> contents(BlobId blob) const {
    const std::lock_guard lock(mutex_);
    return blobs_.at(blob.index).bytes;
  }

 private:
  enum class Access : std::uint8_t { Read, Write };
  struct Blob {
    std::string name;
    std::vector<std::byte> bytes;
  };
  struct Request {
    std::uint32_t blob;
    std::uint64_t offset_bytes;
    std::uint64_t bytes;
    Access access;
  };
  using InFlight = std::list<Request>::iterator;

  static bool conflict(const Request& a, const Request& b) {
    return a.blob == b.blob && (a.access == Access::Write || b.access == Access::Write) &&
           a.offset_bytes < b.offset_bytes + b.bytes && b.offset_bytes < a.offset_bytes + a.bytes;
  }

  InFlight admit(const Request& request) {
    const std::lock_guard lock(mutex_);
    STRATA_EXPECTS(request.blob < blobs_.size(), "blob " + std::to_string(request.blob) + " does not exist");
    const Blob& blob = blobs_[request.blob];
    const std::uint64_t size = blob.bytes.size();
    STRATA_EXPECTS(request.offset_bytes <= size && request.bytes <= size - request.offset_bytes,
                   "the range leaves blob " + blob.name);
    for (const Request& other : in_flight_) {
      STRATA_EXPECTS(!conflict(request, other), "a request on blob " + blob.name + " at offset " +
                                                    std::to_string(request.offset_bytes) +
                                                    " overlaps one in flight, and one of them writes");
    }
    stats_.requests += 1;
    (request.access == Access::Read ? stats_.bytes_read : stats_.bytes_written) += request.bytes;
    return in_flight_.insert(in_flight_.end(), request);
  }

  template <typename Move>
  Event issue(const Request& request, Move move) {
    const InFlight admitted = admit(request);
    auto source = std::make_shared<EventSource>();
    source->submit();
    Event event = source->event();
    auto task = [this, admitted, source, move] {
      {
        const std::lock_guard lock(mutex_);
        move(blobs_[admitted->blob].bytes.data() + admitted->offset_bytes);
        in_flight_.erase(admitted);
      }
      source->complete();
    };
    if (executor_ != nullptr) {
      executor_->post(std::move(task));
    } else {
      task();
    }
    return event;
  }

  Executor* const executor_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<Blob> blobs_;       // guarded by mutex_
  std::list<Request> in_flight_;  // guarded by mutex_
  BlobStoreStats stats_;          // guarded by mutex_
};

}  // namespace strata::test
