// FaultyBlobStore: a BlobStore whose nth read or write fails.
#pragma once

#include <cerrno>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/blob_store.h"
#include "core/error.h"

namespace strata::test {

// Passes everything on to `inner`, which it does not own, but for the requests told to fail: those move no byte and
// return an event that failed with IoError. Thread-safety: as BlobStore.
class FaultyBlobStore final : public BlobStore {
 public:
  explicit FaultyBlobStore(BlobStore& inner) : inner_(inner) {}

  // The `nth` read (or write) from now on fails, 0 being the next one; later ones succeed again.
  void fail_read(std::uint64_t nth, int errno_value = EIO) { arm(reads_, nth, errno_value); }
  void fail_write(std::uint64_t nth, int errno_value = EIO) { arm(writes_, nth, errno_value); }

  BlobId create(std::string name, std::uint64_t bytes) override { return inner_.create(std::move(name), bytes); }

  Event read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) override {
    if (const auto errno_value = due(reads_)) {
      return failed("read", *errno_value, blob, offset_bytes, destination.size());
    }
    return inner_.read(blob, offset_bytes, destination, urgency);
  }

  Event write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) override {
    if (const auto errno_value = due(writes_)) {
      return failed("write", *errno_value, blob, offset_bytes, source.size());
    }
    return inner_.write(blob, offset_bytes, source);
  }

  BlobStoreStats stats() const override { return inner_.stats(); }

 private:
  struct Fuse {
    std::optional<std::uint64_t> requests_left;  // before the one that fails
    int errno_value = EIO;
  };

  void arm(Fuse& fuse, std::uint64_t nth, int errno_value) {
    const std::lock_guard lock(mutex_);
    fuse = {nth, errno_value};
  }

  std::optional<int> due(Fuse& fuse) {
    const std::lock_guard lock(mutex_);
    if (!fuse.requests_left) return std::nullopt;
    if (*fuse.requests_left > 0) {
      --*fuse.requests_left;
      return std::nullopt;
    }
    fuse.requests_left.reset();
    return fuse.errno_value;
  }

  static Event failed(const char* op, int errno_value, BlobId blob, std::uint64_t offset_bytes, std::uint64_t bytes) {
    return Event::failed(std::make_exception_ptr(IoError({.errno_value = errno_value,
                                                          .op = op,
                                                          .path = "faulty blob " + std::to_string(blob.index),
                                                          .offset_bytes = offset_bytes,
                                                          .bytes = bytes,
                                                          .hint = "Injected by the test."})));
  }

  BlobStore& inner_;
  std::mutex mutex_;
  Fuse reads_;   // guarded by mutex_
  Fuse writes_;  // guarded by mutex_
};

}  // namespace strata::test
