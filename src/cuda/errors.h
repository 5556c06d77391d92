// What all parts of one device share: which it is, and the error that it was lost to.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <mutex>
#include <string>

#include "cuda/cuda_call.h"

namespace strata::cuda {

// One GPU of the process. Thread-safe.
class DeviceContext {
 public:
  // Throws: DeviceError when there is no such device.
  explicit DeviceContext(int index);
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  int index() const { return index_; }
  // As strata::cuda::check(). Once an error was sticky every call throws that first one, whatever it is given.
  void check(cudaError_t error, const char* call);
  void throw_if_lost() const;
  // For destructors: logs an error, but not what only follows from a sticky one.
  void log(cudaError_t error, const char* call) noexcept;
  // Makes this the calling thread's device, which it stays: to give the thread back the device that it had would make a
  // context there, hundreds of megabytes, where the thread had not used it. Before every call of CUDA from a thread
  // that is not bound already, whatever it has to do with a device.
  void bind_thread();
  // For destructors: logs an error.
  void bind_thread_noexcept() noexcept;

 private:
  const int index_;
  mutable std::mutex mutex_;
  std::exception_ptr lost_;  // guarded by mutex_; the first sticky error
};

}  // namespace strata::cuda
