// How work is handed to a grid of threads. The same sources compile for the device (nvcc) and for the host (g++), where
// whoever links them provides strata_fake_launch and the grid's threads run one after the other.
//
// A body is a struct that a launch copies. Of threads on their own: `body(thread, threads)` does the share of thread
// number `thread` of `threads`. Of warps: `body.share(block, lane, state)` does a lane's first part of a block and
// returns a value, `body.finish(block, lane, state, largest)` the rest, where `largest` is the largest of the 32 values
// and `state`, a Body::Lane, lies in registers between the two; it may hold a hint for the warp's next block. A block
// belongs to one warp.
// Shares are disjoint and cover the work, so the order of threads and blocks is free. C++17.
#pragma once

#include <cstdint>

#include "core/numeric.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <algorithm>
// Only where the device's code is made: g++ does not know the pragma.
#if defined(__CUDA_ARCH__)
#define STRATA_UNROLL _Pragma("unroll")
#else
#define STRATA_UNROLL
#endif
#else
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#define STRATA_UNROLL

// Runs run(argument) exactly once, after what the stream was given before, and returns 0; or returns a cudaError_t and
// never runs it.
extern "C" int strata_fake_launch(void* stream, void (*run)(void*), void* argument);
#endif

namespace strata::kernels {

// Values of cudaError_t that an entry point returns by itself.
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidValue = 1;

inline constexpr int kWarp = 32;

// Two maxima at once.
struct Largest {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

#if defined(__CUDACC__)

static_assert(kSuccess == cudaSuccess && kInvalidValue == cudaErrorInvalidValue);

inline constexpr int kThreads = 256;
// Enough blocks to fill each multiprocessor to its 2,048 threads; more would only queue.
inline constexpr std::int64_t kBlocksPerMultiprocessor = 8;

__device__ inline std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// Blocks that a multiprocessor can hold at once, at least: Body::kResidentBlocks, or 1,024 threads of 64 registers. A
// body with few threads has fewer blocks and more registers, for loads that are on their way.
template <typename Body>
constexpr auto resident_blocks(int) -> decltype(Body::kResidentBlocks) {
  return Body::kResidentBlocks;
}
template <typename Body>
constexpr int resident_blocks(long) {
  return 4;
}

// Exact in any order.
__device__ inline Largest largest_of_warp(Largest value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value.first = max(value.first, __shfl_xor_sync(0xffffffffu, value.first, distance));
    value.second = max(value.second, __shfl_xor_sync(0xffffffffu, value.second, distance));
  }
  return value;
}

template <typename Body>
__global__ void __launch_bounds__(kThreads, resident_blocks<Body>(0)) grid_kernel(const __grid_constant__ Body body) {
  body(grid_thread(), grid_threads());
}

// The lanes of a warp stay together: they agree on every block.
template <typename Body>
__global__ void __launch_bounds__(kThreads, resident_blocks<Body>(0))
    warp_kernel(const __grid_constant__ Body body, std::int64_t blocks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  typename Body::Lane state;
  for (std::int64_t block = grid_thread() / kWarp; block < blocks; block += grid_threads() / kWarp) {
    const Largest largest = largest_of_warp(body.share(block, lane, state));
    body.finish(block, lane, state, largest);
  }
}

struct Grid {
  unsigned blocks = 0;
  unsigned threads = kThreads;  // of a block
};

// For `threads` threads that have work: small blocks where there are few, so that every multiprocessor has some, and no
// more blocks than the device holds.
inline cudaError_t grid_for(std::int64_t threads, Grid& grid) {
  int device = 0;
  int multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  const std::int64_t each = (threads + multiprocessors - 1) / multiprocessors;
  const std::int64_t of_block = std::min<std::int64_t>(kThreads, (each + kWarp - 1) / kWarp * kWarp);
  grid.threads = static_cast<unsigned>(of_block);
  grid.blocks = static_cast<unsigned>(
      std::min((threads + of_block - 1) / of_block, kBlocksPerMultiprocessor * std::int64_t{multiprocessors}));
  return cudaSuccess;
}

template <typename Body>
int launch_grid(const Body& body, std::int64_t items, void* stream) {
  if (items == 0) return kSuccess;
  Grid grid;
  if (const cudaError_t error = grid_for(items, grid); error != cudaSuccess) return error;
  grid_kernel<Body><<<grid.blocks, grid.threads, 0, static_cast<cudaStream_t>(stream)>>>(body);
  return cudaGetLastError();
}

template <typename Body>
int launch_warps(const Body& body, std::int64_t items, void* stream) {
  if (items == 0) return kSuccess;
  Grid grid;
  if (const cudaError_t error = grid_for(items * kWarp, grid); error != cudaSuccess) return error;
  warp_kernel<Body><<<grid.blocks, grid.threads, 0, static_cast<cudaStream_t>(stream)>>>(body, items);
  return cudaGetLastError();
}

#else

// Threads of a grid on the host, at least one warp. No result depends on it; tests set it. An odd number runs them
// backwards.
inline std::atomic<std::int64_t> host_grid_threads{64};

template <typename Fn>
void for_each_of_grid(std::int64_t count, bool backwards, Fn&& fn) {
  for (std::int64_t i = 0; i < count; ++i) fn(backwards ? count - 1 - i : i);
}

template <typename Body>
void run_block(const Body& body, std::int64_t block) {
  typename Body::Lane states[kWarp];
  Largest largest;
  for (int lane = 0; lane < kWarp; ++lane) {
    const Largest own = body.share(block, lane, states[lane]);
    largest = {std::max(largest.first, own.first), std::max(largest.second, own.second)};
  }
  for (int lane = 0; lane < kWarp; ++lane) body.finish(block, lane, states[lane], largest);
}

// Gives fn() to the stream.
template <typename Fn>
int launch_on_host(Fn fn, void* stream) {
  auto owned = std::make_unique<Fn>(std::move(fn));
  const int error = strata_fake_launch(
      stream, [](void* argument) { (*std::unique_ptr<Fn>(static_cast<Fn*>(argument)))(); }, owned.get());
  if (error == kSuccess) static_cast<void>(owned.release());
  return error;
}

template <typename Body>
int launch_grid(const Body& body, std::int64_t items, void* stream) {
  if (items == 0) return kSuccess;
  const std::int64_t threads = host_grid_threads;
  return launch_on_host(
      [body, threads] {
        for_each_of_grid(threads, threads % 2 != 0, [&](std::int64_t thread) { body(thread, threads); });
      },
      stream);
}

template <typename Body>
int launch_warps(const Body& body, std::int64_t items, void* stream) {
  if (items == 0) return kSuccess;
  const std::int64_t threads = host_grid_threads;
  const std::int64_t warps = std::max<std::int64_t>(1, threads / kWarp);
  return launch_on_host(
      [body, items, threads, warps] {
        for_each_of_grid(warps, threads % 2 != 0, [&](std::int64_t warp) {
          for (std::int64_t block = warp; block < items; block += warps) run_block(body, block);
        });
      },
      stream);
}

#endif

}  // namespace strata::kernels
