#include "support/fake_cuda/runtime.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "cuda/errors.h"

namespace strata::fake_cuda {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

// Calls that need no context.
bool only_asks(std::string_view call) {
  constexpr std::array kCalls = {"cudaGetDeviceCount",      "cudaGetDevice",          "cudaSetDevice",
                                 "cudaGetDeviceProperties", "cudaDeviceGetAttribute", "cudaDeviceGetPCIBusId",
                                 "cudaDriverGetVersion",    "cudaRuntimeGetVersion"};
  return std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end();
}

}  // namespace

Runtime& Runtime::get() {
  static Runtime runtime;
  return runtime;
}

void Runtime::forget() {
  streams.reset();
  memory.reset();
  const std::lock_guard lock(mutex_);
  calls_.clear();
  injections_.clear();
  kernels_ = 0;
  failing_kernel_ = {};
  violations_.clear();
  contexts_.clear();
  lost_ = cudaSuccess;
}

void Runtime::reset(const Config& config) {
  forget();
  const std::lock_guard lock(mutex_);
  config_ = config;
}

void Runtime::fail_call(const std::string& call, std::uint64_t nth, int error) {
  const std::lock_guard lock(mutex_);
  injections_.insert({call, {calls_[call] + nth, static_cast<cudaError_t>(error)}});
}

void Runtime::fail_kernel(std::uint64_t nth, int error) {
  const std::lock_guard lock(mutex_);
  failing_kernel_ = {kernels_ + nth, static_cast<cudaError_t>(error)};
}

std::uint64_t Runtime::calls(const std::string& call) {
  const std::lock_guard lock(mutex_);
  return calls_[call];
}

std::vector<std::string> Runtime::violations() {
  const std::lock_guard lock(mutex_);
  return violations_;
}

Alive Runtime::alive() {
  Alive alive;
  streams.count(alive);
  memory.count(alive);
  return alive;
}

std::vector<int> Runtime::contexts() {
  const std::lock_guard lock(mutex_);
  return {contexts_.begin(), contexts_.end()};
}

void Runtime::make_context(int device) {
  const std::lock_guard lock(mutex_);
  contexts_.insert(device);
}

Config Runtime::config() {
  const std::lock_guard lock(mutex_);
  return config_;
}

void Runtime::violation(std::string what) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(std::move(what));
}

cudaError_t Runtime::enter(const char* call) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++calls_[call];
  if (!only_asks(call)) contexts_.insert(current_device());
  const auto [first, last] = injections_.equal_range(call);
  const auto injection = std::find_if(first, last, [number](const auto& each) { return each.second.nth == number; });
  if (lost() != cudaSuccess) return lost();
  if (injection == last) return cudaSuccess;
  if (cuda::is_sticky(injection->second.error)) lost_ = injection->second.error;
  return injection->second.error;
}

void Runtime::kernel_ran() {
  const std::lock_guard lock(mutex_);
  if (++kernels_ == failing_kernel_.nth && lost() == cudaSuccess) lost_ = failing_kernel_.error;
}

int current_device() {
  return device_of_thread;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace strata::fake_cuda

using strata::fake_cuda::api;
using strata::fake_cuda::Config;
using strata::fake_cuda::Runtime;

strata::fake_cuda::Control* strata_fake_cuda() {
  return &Runtime::get();
}

cudaError_t cudaGetLastError() {
  const cudaError_t lost = Runtime::get().lost();
  return lost != cudaSuccess ? lost : std::exchange(strata::fake_cuda::last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error of the fake runtime";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  return api("cudaGetDeviceCount", [&] {
    *count = Runtime::get().config().devices;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api("cudaSetDevice", [&] {
    if (device < 0 || device >= Runtime::get().config().devices) return cudaErrorInvalidDevice;
    strata::fake_cuda::device_of_thread = device;
    Runtime::get().make_context(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api("cudaGetDevice", [&] {
    *device = strata::fake_cuda::current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  return api("cudaGetDeviceProperties", [&] {
    const Config config = Runtime::get().config();
    *properties = {};
    std::string("Fake GPU").copy(properties->name, sizeof(properties->name) - 1);
    properties->major = config.major;
    properties->minor = config.minor;
    properties->multiProcessorCount = 4;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api("cudaDeviceGetAttribute", [&] {
    const Config config = Runtime::get().config();
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = device == config.old_device ? 6 : config.major;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = device == config.old_device ? 1 : config.minor;
        return cudaSuccess;
      case cudaDevAttrMemoryPoolsSupported:
        *value = config.pools ? 1 : 0;
        return cudaSuccess;
      case cudaDevAttrHostNumaId:
        *value = config.numa_node;
        return cudaSuccess;
      case cudaDevAttrMemoryClockRate:
        *value = 1000000;  // kHz
        return cudaSuccess;
      case cudaDevAttrGlobalMemoryBusWidth:
        *value = 256;  // bits
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

// Of no slot that there is.
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return api("cudaDeviceGetPCIBusId", [&] {
    const std::string none = "FFFF:FF:1F." + std::to_string(device % 8);
    if (bytes <= static_cast<int>(none.size())) return cudaErrorInvalidValue;
    id[none.copy(id, none.size())] = '\0';
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api("cudaDriverGetVersion", [&] {
    *version = 13000;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return api("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
