#include "nvme/uring_backend.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "nvme/file_descriptor.h"

namespace strata::nvme {
namespace {

bool transient(int error) {
  // EBUSY: the completion ring overflowed; reaping it is the cure. EAGAIN: no memory for the requests just now.
  return error == EINTR || error == EAGAIN || error == EBUSY;
}

std::string setup_hint(int error) {
  switch (error) {
    case EPERM:
      return "io_uring is forbidden here (seccomp profile or sysctl kernel.io_uring_disabled); use threads";
    case ENOSYS:
      return "this kernel has no io_uring; use threads";
    case ENOMEM:
      return "no memory for another ring; raise RLIMIT_MEMLOCK (ulimit -l) or use threads";
    default:
      return "use threads instead of io_uring";
  }
}

// How long the kernel's thread of a polled ring looks for requests before it sleeps and has to be woken.
constexpr unsigned kPollMilliseconds = 2;

unsigned flags_of(RingMode mode) {
  switch (mode) {
    case RingMode::Plain:
      return IORING_SETUP_CLAMP;
    case RingMode::Deferred:
      return IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    case RingMode::Polled:
      return IORING_SETUP_CLAMP | IORING_SETUP_SQPOLL;
  }
  return IORING_SETUP_CLAMP;
}

std::vector<iovec> pieces_of(const std::vector<std::span<std::byte>>& regions) {
  std::vector<iovec> pieces;
  for (std::span<std::byte> region : regions) {
    while (!region.empty()) {
      const std::size_t bytes = std::min(region.size(), kMaxRequestBytes);
      pieces.push_back({region.data(), bytes});
      region = region.subspan(bytes);
    }
  }
  return pieces;
}

std::string memlock_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

void warn_unregistered(int error, const std::vector<iovec>& pieces) {
  std::uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  // Once per process: every ring meets the same limit.
  log::warning_once("nvme.memlock", "io_uring cannot register " + format_bytes(total) + " of I/O buffers (" +
                                        std::strerror(error) + "; locked memory limit RLIMIT_MEMLOCK is " +
                                        memlock_text() +
                                        "): carrying on unregistered, which costs some CPU time per request. Set "
                                        "`ulimit -l unlimited`, or memlock in /etc/security/limits.conf");
}

}  // namespace

std::string_view liburing_version() {
  return STRATA_LIBURING_VERSION;
}

struct UringBackend::Ring {
  io_uring ring{};
  RingMode mode = RingMode::Plain;
  bool open = false;
  bool wake_armed = false;
  FileDescriptor wake_fd;
  std::uint64_t wake_value = 0;   // where the ring reads the eventfd into
  std::vector<int> files;         // registered; empty when the kernel refused
  std::vector<iovec> pieces;      // registered; empty when the kernel refused
  std::deque<IoRequest> backlog;  // found no free entry; complete() submits them

  Ring() = default;
  explicit Ring(const UringOptions& options) : Ring() {  // delegates, so that the destructor runs when the rest throws
    open_ring(options);
    register_files(options.files);
    register_buffers(options.regions);
    arm_wake();
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open) close_ring();
  }

  void open_ring(const UringOptions& options);
  void close_ring();
  void register_files(const std::vector<int>& fds);
  void register_buffers(const std::vector<std::span<std::byte>>& regions);
  void arm_wake();
  void wake();
  io_uring_sqe* try_entry();
  bool try_submit(const IoRequest& request);
  int piece_of(const std::byte* data, std::size_t bytes) const;
  std::size_t reap(std::span<IoCompletion> out, bool& woken);
};

void UringBackend::Ring::open_ring(const UringOptions& options) {
  const auto setup = options.setup != nullptr ? options.setup : &io_uring_queue_init_params;
  const auto attempt = [&](RingMode wanted) {
    io_uring_params params{};
    params.flags = flags_of(wanted);
    params.sq_thread_idle = kPollMilliseconds;  // looked at by a polled ring only
    // One entry more, for the eventfd.
    const int result = setup(options.entries + 1, &ring, &params);
    if (result != 0) return result;
    if (wanted == RingMode::Polled && (params.features & IORING_FEAT_SQPOLL_NONFIXED) == 0) {
      io_uring_queue_exit(&ring);  // Linux 5.10 and older poll only for registered files, which the eventfd is not
      return -EINVAL;
    }
    mode = wanted;
    return 0;
  };
  int result = attempt(options.mode);
  // EPERM: before Linux 5.13 only root may have the kernel poll; and some sandboxes say it for flags they don't like.
  if (options.mode != RingMode::Plain && (result == -EINVAL || result == -EPERM)) result = attempt(RingMode::Plain);
  if (result < 0) throw IoError({-result, "io_uring_setup", "io_uring", 0, 0, setup_hint(-result)});
  open = true;
  wake_fd = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (wake_fd.get() < 0)
    throw IoError({errno, "eventfd", "io_uring", 0, 0, "raise the limit of open files (ulimit -n)"});
}

void UringBackend::Ring::close_ring() {
  // The kernel ends a ring's requests asynchronously, so let the armed read of wake_value finish before its memory
  // goes.
  if (wake_armed) wake();
  while (wake_armed) {
    const int result = io_uring_submit_and_wait(&ring, 1);
    if (result < 0 && !transient(-result)) break;
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      if (cqe->user_data == kReservedToken) wake_armed = false;
      io_uring_cqe_seen(&ring, cqe);
    }
  }
  io_uring_queue_exit(&ring);
}

void UringBackend::Ring::register_files(const std::vector<int>& fds) {
  if (fds.empty()) return;
  // Registration only saves a reference count per request, so a refusal needs no message.
  if (io_uring_register_files(&ring, fds.data(), static_cast<unsigned>(fds.size())) == 0) files = fds;
}

void UringBackend::Ring::register_buffers(const std::vector<std::span<std::byte>>& regions) {
  std::vector<iovec> wanted = pieces_of(regions);
  if (wanted.empty()) return;
  std::sort(wanted.begin(), wanted.end(), [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
  const int result = io_uring_register_buffers(&ring, wanted.data(), static_cast<unsigned>(wanted.size()));
  if (result == 0) {
    pieces = std::move(wanted);
  } else {
    warn_unregistered(-result, wanted);
  }
}

io_uring_sqe* UringBackend::Ring::try_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring);
  if (entry != nullptr) return entry;
  // Full: hand over what is there. A refusal here is met again, and examined, in complete().
  const int submitted = io_uring_submit(&ring);
  return submitted > 0 ? io_uring_get_sqe(&ring) : nullptr;
}

void UringBackend::Ring::arm_wake() {
  io_uring_sqe* entry = try_entry();
  if (entry == nullptr) throw IoError({EBUSY, "io_uring_get_sqe", "io_uring", 0, 0, "use threads"});
  io_uring_prep_read(entry, wake_fd.get(), &wake_value, sizeof wake_value, 0);
  entry->user_data = kReservedToken;
  wake_armed = true;
}

void UringBackend::Ring::wake() {
  const std::uint64_t one = 1;
  // Fails only by EINTR, or by EAGAIN at 2^64 - 2 unread wakes (not for a blocking eventfd).
  while (::write(wake_fd.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

int UringBackend::Ring::piece_of(const std::byte* data, std::size_t bytes) const {
  const auto after = std::upper_bound(pieces.begin(), pieces.end(), data, [](const std::byte* address, const iovec& p) {
    return address < static_cast<const std::byte*>(p.iov_base);
  });
  if (after == pieces.begin()) return -1;
  const iovec& piece = *std::prev(after);
  const auto skipped = static_cast<std::size_t>(data - static_cast<const std::byte*>(piece.iov_base));
  if (skipped >= piece.iov_len || bytes > piece.iov_len - skipped) return -1;
  return static_cast<int>(std::prev(after) - pieces.begin());
}

bool UringBackend::Ring::try_submit(const IoRequest& request) {
  io_uring_sqe* entry = try_entry();
  if (entry == nullptr) return false;
  const int piece = piece_of(request.data, request.bytes);
  const auto bytes = static_cast<unsigned>(request.bytes);
  const auto file = std::find(files.begin(), files.end(), request.fd);
  const int fd = file == files.end() ? request.fd : static_cast<int>(file - files.begin());
  if (request.op == IoOp::Read) {
    if (piece >= 0) {
      io_uring_prep_read_fixed(entry, fd, request.data, bytes, request.offset, piece);
    } else {
      io_uring_prep_read(entry, fd, request.data, bytes, request.offset);
    }
  } else if (piece >= 0) {
    io_uring_prep_write_fixed(entry, fd, request.data, bytes, request.offset, piece);
  } else {
    io_uring_prep_write(entry, fd, request.data, bytes, request.offset);
  }
  if (file != files.end()) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  entry->user_data = request.token;
  return true;
}

std::size_t UringBackend::Ring::reap(std::span<IoCompletion> out, bool& woken) {
  std::size_t count = 0;
  io_uring_cqe* cqe = nullptr;
  while (count < out.size() && io_uring_peek_cqe(&ring, &cqe) == 0) {
    const IoCompletion completion{cqe->user_data, cqe->res};
    io_uring_cqe_seen(&ring, cqe);
    if (completion.token == kReservedToken) {
      woken = true;
      arm_wake();
    } else {
      out[count++] = completion;
    }
  }
  return count;
}

UringBackend::UringBackend(const UringOptions& options) : ring_(std::make_unique<Ring>(options)) {}
UringBackend::~UringBackend() = default;

RingMode UringBackend::mode() const {
  return ring_->mode;
}

bool UringBackend::buffers_registered() const {
  return !ring_->pieces.empty();
}

void UringBackend::submit(const IoRequest& request) {
  if (!ring_->backlog.empty() || !ring_->try_submit(request)) ring_->backlog.push_back(request);
}

std::size_t UringBackend::complete(std::span<IoCompletion> out) {
  for (;;) {
    while (!ring_->backlog.empty() && ring_->try_submit(ring_->backlog.front())) ring_->backlog.pop_front();
    // Fewer entries may be taken than are there: liburing keeps the rest for the next call.
    const int result = io_uring_submit_and_wait(&ring_->ring, 1);
    if (result < 0 && !transient(-result)) {
      throw IoError({-result, "io_uring_enter", "io_uring", 0, 0, "use threads instead of io_uring"});
    }
    bool woken = false;
    const std::size_t count = ring_->reap(out, woken);
    if (count > 0 || woken) return count;
  }
}

void UringBackend::wake() {
  ring_->wake();
}

}  // namespace strata::nvme
