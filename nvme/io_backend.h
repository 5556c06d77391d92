// Port: performs I/O requests, with no opinion about order, size, retries or errors. IoQueue has those.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nvme/io_request.h"

namespace strata::nvme {

// Threads: construction, submit(), complete() and destruction belong to one thread (the owner); wake() is for any
// thread. Order: completions come in any order. Every submitted request completes exactly once. Requires: every request
// has completed before destruction.
class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual std::string_view name() const = 0;
  // Queues one request. It may wait inside the backend until the next complete().
  virtual void submit(const IoRequest& request) = 0;
  // Hands over what was queued, blocks until at least one request has completed or wake() was called, and stores up to
  // out.size() completions. Returns how many: 0 means that it was woken. Requires: out is not empty.
  // Throws: IoError when the backend itself is broken; no request may then be counted on.
  virtual std::size_t complete(std::span<IoCompletion> out) = 0;
  // Makes the running complete(), or else the next one, return. Several calls may count as one.
  virtual void wake() = 0;
};

}  // namespace strata::nvme
