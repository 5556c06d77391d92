#include "cuda/pinned_pages.h"

#include <sys/resource.h>

#include <cstdint>
#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::cuda {
namespace {

class PinnedPages final : public PinnedRegion {
 public:
  PinnedPages(DeviceContext& context, void* pages) : context_(context), pages_(pages) {}
  ~PinnedPages() override {
    context_.bind_thread_noexcept();
    context_.log(cudaHostUnregister(pages_), "cudaHostUnregister");
  }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;

 private:
  DeviceContext& context_;
  void* const pages_;
};

std::string locked_memory_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "none" : format_bytes(limit.rlim_cur);
}

std::string hint(cudaError_t error) {
  switch (error) {
    case cudaErrorHostMemoryAlreadyRegistered:
      return "a part of it is pinned already; memory is pinned once";
    case cudaErrorMemoryAllocation:
    case cudaErrorOperatingSystem:
      return "the system would not lock it; the limit of locked memory is " + locked_memory_limit() +
             ". Raise it (ulimit -l, memlock in /etc/security/limits.conf, LimitMEMLOCK of systemd, --ulimit "
             "memlock=-1 "
             "of docker), or lower the host budget";
    default:
      return "";
  }
}

}  // namespace

std::unique_ptr<PinnedRegion> pin_pages(DeviceContext& context, std::span<std::byte> pages) {
  const auto address = reinterpret_cast<std::uintptr_t>(pages.data());
  STRATA_EXPECTS(!pages.empty() && address % kPageBytes == 0 && pages.size() % kPageBytes == 0,
                 "whole pages are pinned");
  context.bind_thread();
  const cudaError_t error = cudaHostRegister(pages.data(), pages.size(), cudaHostRegisterPortable);
  if (const std::string why = hint(error); !why.empty()) {
    static_cast<void>(cudaGetLastError());  // taken back; see check()
    throw DeviceError("cudaHostRegister could not pin " + format_bytes(pages.size()) + " of host memory (" +
                      cudaGetErrorName(error) + "): " + why);
  }
  context.check(error, "cudaHostRegister");
  return std::make_unique<PinnedPages>(context, pages.data());
}

}  // namespace strata::cuda
