// Return codes of the CUDA runtime as exceptions, and what all parts of one device share.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <mutex>
#include <string>

namespace strata::cuda {

// Throws: DeviceError with the call, the error's name and its text. Takes the error back from cudaGetLastError(), so
// that whoever looks there next (torch does, after each of its launches) is not blamed for it.
void check(cudaError_t error, const char* call);

// After these the context of the process is gone: every later call returns the same error.
bool is_sticky(cudaError_t error);

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
  // Makes this the calling thread's device for good.
  void bind_thread();

 private:
  const int index_;
  mutable std::mutex mutex_;
  std::exception_ptr lost_;  // guarded by mutex_; the first sticky error
};

// Makes `context` the calling thread's device while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(DeviceContext& context);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  DeviceContext& context_;
  int previous_ = 0;
};

}  // namespace strata::cuda
