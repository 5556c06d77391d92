// The host as a device: a byte-budgeted arena and streams that are real asynchronous queues.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"

namespace strata {

// How a host stream behaves. Adversarial is for tests: work runs late (seeded random delays), a wait on an event that
// was never submitted fails at once with ContractViolation, and released buffers are filled with NaN patterns (0xff).
struct HostDeviceOptions {
  enum class Mode : std::uint8_t { Normal, Adversarial };
  Mode mode = Mode::Normal;
  std::uint64_t seed = 0;
};

// Thread-safety: create_stream and allocate from any thread; each stream as Stream says. Streams must not outlive the
// device.
class HostDevice final : public Device {
 public:
  HostDevice(std::uint64_t budget_bytes, HostDeviceOptions options = {});
  ~HostDevice() override;

  std::string_view name() const override { return "host"; }
  std::unique_ptr<Stream> create_stream(std::string name) override;
  Buffer allocate(std::size_t bytes, MemoryTag tag) override;
  Budget& budget() override { return budget_; }

 private:
  Budget budget_;
  HostDeviceOptions options_;
  std::atomic<std::uint64_t> streams_created_{0};
};

}  // namespace strata
