// One process group of c10d, Gloo or NCCL: transfers that name who did not answer, in place, and an abort.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace strata::comm {

class DeviceGroup;

// Collectives that are sequences of sends and receives, so that an abort leaves nobody behind who still writes into the
// caller's memory; c10d's own collectives of Gloo cannot be ended, they run on until their time-out.
// [Note: c10d's Gloo] Torch 2.11's _reduce_scatter_base for Gloo clones its input and all-reduces the clone: twice the
// bytes, a second buffer that nobody counted, and a sum in ring order. Hence exchange() and ShardMath::sum_rows().
//
// N = world(). All ranks call the same in the same order, from one thread; abort() comes from any. A transfer that
// takes longer than `timeout`, throws CommError, one whose connection closes ConnectionLost; the channel is then broken
// and each later call throws the first reason. `what` is the collective's name for messages.
class C10dChannel {
 public:
  // `ranks`: the rank in the job of each member, for messages. `device`: where the back-end's transfers are queued on a
  // device, and the calls return when they are; the memory is the device's then.
  C10dChannel(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
              std::vector<std::size_t> ranks, std::shared_ptr<DeviceGroup> device = nullptr);
  ~C10dChannel();
  C10dChannel(const C10dChannel&) = delete;
  C10dChannel& operator=(const C10dChannel&) = delete;

  std::size_t rank() const { return rank_; }
  std::size_t world() const { return ranks_.size(); }

  // `rows` is [N, row_bytes], this rank's row is filled. All are afterwards. A ring: of the ranks of one node only one
  // sends to the next node.
  void all_gather(std::string_view what, std::byte* rows, std::size_t row_bytes);
  // Row j becomes what rank j had in the row of this rank. `staging` holds what has come and not yet been moved; all
  // ranks give the same size.
  void exchange(std::string_view what, std::byte* rows, std::size_t row_bytes, std::span<std::byte> staging);
  void broadcast(std::span<std::byte> bytes, std::size_t root);
  void barrier();

  // Any thread: what is under way and all that comes throws `reason`, or the first one given.
  void abort(const std::exception_ptr& reason);

 private:
  class Call;
  struct Transfer;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<DeviceGroup> device_;
  const std::chrono::milliseconds timeout_;
  const std::vector<std::size_t> ranks_;
  const std::size_t rank_;
  std::uint64_t calls_ = 0;

  std::mutex mutex_;
  std::exception_ptr failure_;     // guarded by mutex_
  c10d::Work* waiting_ = nullptr;  // guarded by mutex_: what the calling thread waits for
};

}  // namespace strata::comm
