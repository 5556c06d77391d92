#include "cuda/current_stream.h"

namespace strata::cuda {
namespace {

thread_local cudaStream_t current = nullptr;

}  // namespace

cudaStream_t current_stream() {
  return current;
}

CurrentStream::CurrentStream(cudaStream_t stream) : previous_(current) {
  current = stream;
}

CurrentStream::~CurrentStream() {
  current = previous_;
}

}  // namespace strata::cuda
