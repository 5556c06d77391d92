#include "cuda/cuda_call.h"

#include "core/error.h"

namespace strata::cuda {

std::string failure_text(cudaError_t error, const char* call) {
  std::string text = std::string(call) + " failed: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  if (is_sticky(error)) text += "; nothing can run on this GPU until the program is started again";
  return text;
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // a sticky one cannot be taken back
  throw DeviceError(failure_text(error, call));
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

}  // namespace strata::cuda
