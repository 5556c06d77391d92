#include "cuda/errors.h"

#include "core/error.h"
#include "core/log.h"

namespace strata::cuda {

DeviceContext::DeviceContext(int index) : index_(index) {
  bind_thread();
}

void DeviceContext::check(cudaError_t error, const char* call) {
  throw_if_lost();
  if (is_sticky(error)) {
    const std::lock_guard lock(mutex_);
    // Another thread may have seen it first.
    if (!lost_) lost_ = std::make_exception_ptr(DeviceError(failure_text(error, call)));
  }
  throw_if_lost();
  cuda::check(error, call);
}

void DeviceContext::throw_if_lost() const {
  const std::lock_guard lock(mutex_);
  if (lost_) std::rethrow_exception(lost_);
}

void DeviceContext::log(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess) return;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
  }
  static_cast<void>(cudaGetLastError());  // taken back, as by check()
  log::error(failure_text(error, call));
}

void DeviceContext::bind_thread() {
  check(cudaSetDevice(index_), "cudaSetDevice");
}

void DeviceContext::bind_thread_noexcept() noexcept {
  log(cudaSetDevice(index_), "cudaSetDevice");
}

}  // namespace strata::cuda
