// IoBackend on io_uring (Linux 5.6 or newer). The only files that know liburing are this one's .cpp and its tests.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nvme/io_backend.h"

struct io_uring;
struct io_uring_params;

namespace strata::nvme {

// How the ring is driven. A mode that the kernel does not know, or does not allow, falls back to Plain.
//   Plain     an interrupt may run completions at any time
//   Deferred  completions run when the owner asks for them (SINGLE_ISSUER and DEFER_TASKRUN, Linux 6.1)
//   Polled    a kernel thread takes submissions without a system call (SQPOLL); it occupies a core while it polls
enum class RingMode : std::uint8_t { Plain, Deferred, Polled };

struct UringOptions {
  RingMode mode = RingMode::Deferred;
  unsigned entries = 64;                        // requests in the submission ring; more may be submitted
  std::vector<int> files{};                     // registered ("fixed") files; others work too
  std::vector<std::span<std::byte>> regions{};  // memory to register; requests elsewhere work too
  // The call that makes the ring, with the signature of io_uring_queue_init_params, which null stands for.
  int (*setup)(unsigned entries, io_uring* ring, io_uring_params* params) = nullptr;
};

// Of the liburing that this was built with: "2.3".
std::string_view liburing_version();

// One ring, owned by the constructing thread. Registers regions in pieces of at most 1 GiB; when the kernel refuses
// (locked memory limit), warns once and carries on unregistered. A request that crosses two pieces goes unregistered.
class UringBackend final : public IoBackend {
 public:
  // Throws: IoError("io_uring_setup") when the kernel gives no ring: EPERM, ENOSYS, ENOMEM, ...
  explicit UringBackend(const UringOptions& options);
  ~UringBackend() override;

  std::string_view name() const override { return "io_uring"; }
  void submit(const IoRequest& request) override;
  std::size_t complete(std::span<IoCompletion> out) override;
  void wake() override;

  // The mode in use, after any fall-back.
  RingMode mode() const;
  bool buffers_registered() const;

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;
};

}  // namespace strata::nvme
