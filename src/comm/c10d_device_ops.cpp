#include "comm/c10d_device_ops.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <vector>

namespace strata::comm {
namespace {

// With its device named, which else the driver is asked for.
at::Tensor view(const c10d::Backend& backend, std::byte* data, std::size_t bytes) {
  const at::Device device = *backend.getBoundDeviceId();
  return at::for_blob(data, {static_cast<std::int64_t>(bytes)})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

// fn() queues transfers that the back-end takes as one group, which ends in any case: NCCL would hold back whatever
// this thread gives it afterwards. The stream waits for them, not this thread.
template <typename Fn>
void as_one_group(c10d::Backend& backend, Fn fn) {
  backend.startCoalescing();
  try {
    fn();
  } catch (...) {
    try {
      backend.endCoalescing();
    } catch (const std::exception&) {  // what came first counts
    }
    throw;
  }
  if (const auto work = backend.endCoalescing()) work->wait();
}

}  // namespace

// One communicator of NCCL for all: an eager one is what c10d takes for sends and receives too, where it would else
// make another for each pair of ranks that speaks outside of a group.
void device_connect(c10d::Backend& backend) {
  backend.eagerConnectSingleDevice(*backend.getBoundDeviceId());
}

void device_all_gather(c10d::Backend& backend, std::byte* rows, std::size_t row_bytes) {
  const auto n = static_cast<std::size_t>(backend.getSize());
  at::Tensor all = view(backend, rows, n * row_bytes);
  at::Tensor own = view(backend, rows + static_cast<std::size_t>(backend.getRank()) * row_bytes, row_bytes);
  c10d::AllgatherOptions options;
  options.asyncOp = false;  // on the current stream, not on one of c10d's
  if (const auto work = backend._allgather_base(all, own, options)) work->wait();
}

void device_exchange(c10d::Backend& backend, std::byte* rows, std::size_t row_bytes, std::span<std::byte> staging) {
  const auto n = static_cast<std::size_t>(backend.getSize());
  const auto rank = static_cast<std::size_t>(backend.getRank());
  for (std::size_t round = 0; round < n; ++round) {
    const std::size_t partner = (round + n - rank) % n;
    if (partner == rank) continue;
    for (std::size_t first = 0; first < row_bytes; first += staging.size()) {
      const std::size_t bytes = std::min(staging.size(), row_bytes - first);
      std::vector<at::Tensor> out = {view(backend, rows + partner * row_bytes + first, bytes)};
      std::vector<at::Tensor> in = {view(backend, staging.data(), bytes)};
      // A send alone would wait for a receive that the partner has not queued.
      as_one_group(backend, [&] {
        backend.send(out, static_cast<int>(partner), 0);
        backend.recv(in, static_cast<int>(partner), 0);
      });
      out[0].copy_(in[0], /*non_blocking=*/true);
    }
  }
}

}  // namespace strata::comm
