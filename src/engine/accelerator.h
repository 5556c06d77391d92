// The device that a run computes on and what belongs to it: the host, or a GPU by the CUDA plug-in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/device.h"
#include "core/shard_optimizer.h"
#include "cuda/backend.h"
#include "engine/engine_config.h"

namespace strata::engine {

// Owns the device. Destroyed after everything that uses it. One thread, but for what the ports allow.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual Device& device() = 0;
  // Of updates on the device, on the stream whose launch() calls it.
  virtual ShardOptimizer& optimizer() = 0;
  // Of the comm stream, likewise.
  virtual ShardMath& math() = 0;
  // Host memory that copies to and from the device will touch: whole pages, pinned until the result is destroyed, which
  // is before the memory is freed. Null where it makes no difference.
  virtual std::unique_ptr<cuda::PinnedRegion> pin(std::span<std::byte> pages) = 0;
  // A stream whose launches call torch or a communicator. Torch's tensors are paid out of the device's budget. Torch's
  // being out of memory fails the stream as OutOfBudget, its failed calls of CUDA as DeviceError.
  virtual std::unique_ptr<Stream> create_library_stream(const std::string& name) = 0;
};

struct AcceleratorNeeds {
  std::uint64_t budget_bytes = 0;
  std::uint64_t torch_bytes = 0;   // of the budget, for torch's tensors at their most
  std::size_t update_threads = 1;  // where the host is the device: of its optimizer
};

// Throws: DeviceError, OutOfBudget.
std::unique_ptr<Accelerator> make_accelerator(const EngineConfig& config, const AcceleratorNeeds& needs);

}  // namespace strata::engine
