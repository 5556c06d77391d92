#include "cuda/current_stream.h"

#include <utility>

namespace strata::cuda {
namespace {

thread_local cudaStream_t current = nullptr;

}  // namespace

cudaStream_t current_stream() {
  return current;
}

CurrentStream::CurrentStream(cudaStream_t stream) : before_(std::exchange(current, stream)) {}

CurrentStream::~CurrentStream() {
  current = before_;
}

}  // namespace strata::cuda
