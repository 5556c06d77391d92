// Pin: the right to touch one piece of a shard in host memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/event.h"
#include "offload/shard.h"

namespace strata::offload {

class ShardStore;

// Move-only right to touch one piece of a shard in host memory. While it lives, the page stays where it is.
// Read pins share; a Write or ReadWrite pin is alone. The bytes may be touched once ready() is complete.
// A piece at home in host memory has no page (paged() is false): its pins are plain addresses, always ready, and keep
// nobody out; its users order their accesses through events.
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept { *this = std::move(other); }
  Pin& operator=(Pin&& other) noexcept;
  ~Pin() { release(); }

  const Event& ready() const { return ready_; }
  // Blocks until ready; the time counts as stall. Throws: what the read failed with.
  std::span<std::byte> wait() const;
  // The memory; its contents are valid once ready() is complete.
  std::span<std::byte> bytes() const { return bytes_; }
  // Ends the pin now. A written page is now the latest version.
  void release() noexcept;
  // Ends the pin when `event` completes (or fails: whoever waits for the event sees the failure).
  void release_after(const Event& event) noexcept;

 private:
  friend class ShardStore;
  ShardStore* store_ = nullptr;  // null for a piece at home in host memory, which needs no page
  PieceId piece_;
  Access access_ = Access::Read;
  Event ready_;
  std::span<std::byte> bytes_;
};

}  // namespace strata::offload
