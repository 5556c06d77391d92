// What c10d's NCCL adds to the CUDA plug-in (src/cuda).
#pragma once

#include <cstddef>
#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

extern "C" {
// A new c10d back-end that the caller owns, or null with the reason in `error` of `error_bytes`. Shares `store`.
__attribute__((visibility("default"))) c10d::Backend* strata_make_nccl_backend(c10d::Store* store, int rank, int world,
                                                                               int device, std::int64_t timeout_ms,
                                                                               char* error, std::size_t error_bytes);
}
