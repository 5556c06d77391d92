#include "comm/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/c10d_channel.h"
#include "comm/sum_rows.h"
#include "core/error.h"

namespace strata::comm {
namespace {

static_assert(kStagingBytes >= kSumChunk * sizeof(float), "the sum's scratch lies in the staging memory");

class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(C10dGroups groups, ShardMath& math, Buffer staging)
      : math_(math),
        staging_(std::move(staging)),
        queued_(std::move(groups.queued), groups.timeout, groups.ranks),
        blocking_(std::move(groups.blocking), groups.timeout, groups.ranks) {
    STRATA_EXPECTS(staging_.bytes() >= kStagingBytes, "staging memory");
    STRATA_EXPECTS(queued_.rank() == blocking_.rank(), "groups of the same ranks");
  }

  std::size_t rank() const override { return queued_.rank(); }
  std::size_t world() const override { return queued_.world(); }

  void all_gather(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] { queued_.all_gather("all_gather", full.data, full.bytes() / world()); });
  }
  void reduce_scatter(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] {
      queued_.exchange("reduce_scatter", full.data, full.bytes() / world(), staging_.span());
      if (world() > 1) sum_rows(math_, full, world(), rank(), {staging_.data(), DType::F32, kSumChunk});
    });
  }
  void all_to_all(Stream& stream, TensorSpan full) override {
    on(stream, full,
       [this, full] { queued_.exchange("all_to_all", full.data, full.bytes() / world(), staging_.span()); });
  }

  void all_reduce_sum(std::span<double> values) override {
    std::vector<double> all(values.size() * world());
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(rank() * values.size()));
    gather_values("all_reduce_sum", all);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0;
      for (std::size_t r = 0; r < world(); ++r) values[i] += all[r * values.size() + i];
    }
  }
  void all_gather_values(std::span<double> all) override {
    STRATA_EXPECTS(all.size() % world() == 0, "rows of equal size");
    gather_values("all_gather_values", all);
  }
  void broadcast(std::span<std::byte> bytes, std::size_t root) override {
    guarded([&] { blocking_.broadcast(bytes, root); });
    if (rank() == root) control_bytes_ += bytes.size() * (world() - 1);
  }
  void barrier() override {
    guarded([&] { blocking_.barrier(); });
  }

  void abort(std::exception_ptr reason) override {
    queued_.abort(reason);
    blocking_.abort(reason);
  }
  CommStats stats() const override { return {bytes_sent_, control_bytes_, busy_seconds_}; }

 private:
  void gather_values(std::string_view what, std::span<double> all) {
    const std::span<std::byte> bytes = std::as_writable_bytes(all);
    guarded([&] { blocking_.all_gather(what, bytes.data(), bytes.size() / world()); });
    control_bytes_ += bytes.size() / world() * (world() - 1);
  }
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

  ShardMath& math_;
  const Buffer staging_;
  C10dChannel queued_;
  C10dChannel blocking_;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
  std::atomic<std::uint64_t> control_bytes_ = 0;
  std::atomic<double> busy_seconds_ = 0;  // written by the stream's thread alone
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_communicator(C10dGroups groups, ShardMath& math, Buffer staging) {
  return std::make_unique<C10dCommunicator>(std::move(groups), math, std::move(staging));
}

}  // namespace strata::comm
