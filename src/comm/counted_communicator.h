// What communicators of several ranks share: sums made of gathers, the time and the bytes of each collective.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/error.h"

namespace strata::comm {

class CountedCommunicator : public Communicator {
 public:
  void all_reduce_sum(std::span<double> values) final {
    const std::size_t n = values.size();
    std::vector<double> all(n * world());
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(rank() * n));
    gather_values("all_reduce_sum", all);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = 0;
      for (std::size_t r = 0; r < world(); ++r) values[i] += all[r * n + i];
    }
  }
  void all_gather_values(std::span<double> all) final { gather_values("all_gather_values", all); }
  void broadcast(std::span<std::byte> bytes, std::size_t root) final {
    STRATA_EXPECTS(root < world(), "one of the ranks");
    broadcast_bytes(bytes, root);
    if (rank() == root) control_bytes_ += bytes.size() * (world() - 1);
  }
  CommStats stats() const final { return {bytes_sent_, control_bytes_, busy_seconds_}; }

 protected:
  // These block. Rows of equal size, of which this rank's is filled; `what` names the collective.
  virtual void gather_rows(std::string_view what, std::span<std::byte> rows) = 0;
  virtual void broadcast_bytes(std::span<std::byte> bytes, std::size_t root) = 0;

  // Queues a collective that sends each other rank a row of `full`. Where it fails, every collective does.
  template <typename Fn>
  void on(Stream& stream, TensorSpan full, Fn fn) {
    STRATA_EXPECTS(full.numel % world() == 0, "rows of equal size");
    stream.launch([this, full, fn] {
      const auto start = std::chrono::steady_clock::now();
      guarded(fn);
      bytes_sent_ += full.bytes() / world() * (world() - 1);
      busy_seconds_ = busy_seconds_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
  }
  template <typename Fn>
  void guarded(Fn fn) {
    try {
      fn();
    } catch (...) {
      abort(std::current_exception());
      throw;
    }
  }

 private:
  void gather_values(std::string_view what, std::span<double> all) {
    STRATA_EXPECTS(all.size() % world() == 0, "rows of equal size");
    const std::span<std::byte> bytes = std::as_writable_bytes(all);
    gather_rows(what, bytes);
    control_bytes_ += bytes.size() / world() * (world() - 1);
  }

  std::atomic<std::uint64_t> bytes_sent_ = 0;
  std::atomic<std::uint64_t> control_bytes_ = 0;
  std::atomic<double> busy_seconds_ = 0;  // written by the stream's thread alone
};

}  // namespace strata::comm
