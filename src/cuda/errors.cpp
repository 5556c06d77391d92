#include "cuda/errors.h"

#include "core/error.h"
#include "core/log.h"

namespace strata::cuda {
namespace {

std::string text_of(cudaError_t error, const char* call) {
  std::string text = std::string(call) + " failed: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  if (is_sticky(error)) text += "; nothing can run on this GPU until the program is started again";
  return text;
}

// The runtime keeps the last error for cudaGetLastError(); a sticky one cannot be taken back.
void take_back() {
  static_cast<void>(cudaGetLastError());
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  take_back();
  throw DeviceError(text_of(error, call));
}

// By number, because the headers of older toolkits lack some of the names. driver_types.h says of each that the process
// must be restarted, or that the fault is the hardware's.
bool is_sticky(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case 214:  // ECCUncorrectable
    case 220:  // NvlinkUncorrectable
    case 226:  // Contained
    case 700:  // IllegalAddress
    case 702:  // LaunchTimeout
    case 709:  // ContextIsDestroyed
    case 710:  // Assert
    case 714:  // HardwareStackError
    case 715:  // IllegalInstruction
    case 716:  // MisalignedAddress
    case 717:  // InvalidAddressSpace
    case 718:  // InvalidPc
    case 719:  // LaunchFailure
    case 721:  // TensorMemoryLeak
    case 810:  // MpsClientTerminated
      return true;
    default:
      return false;
  }
}

DeviceContext::DeviceContext(int index) : index_(index) {
  const DeviceScope scope(*this);
}

void DeviceContext::check(cudaError_t error, const char* call) {
  throw_if_lost();
  if (is_sticky(error)) {
    const std::lock_guard lock(mutex_);
    // Another thread may have seen it first.
    if (!lost_) lost_ = std::make_exception_ptr(DeviceError(text_of(error, call)));
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
  take_back();
  log::error(text_of(error, call));
}

void DeviceContext::bind_thread() {
  check(cudaSetDevice(index_), "cudaSetDevice");
}

DeviceScope::DeviceScope(DeviceContext& context) : context_(context) {
  context_.check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != context_.index()) context_.bind_thread();
}

DeviceScope::~DeviceScope() {
  if (previous_ != context_.index()) context_.log(cudaSetDevice(previous_), "cudaSetDevice");
}

}  // namespace strata::cuda
