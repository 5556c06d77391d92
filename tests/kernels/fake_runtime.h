// What the fake CUDA runtime of these tests was asked for, and what it answers.
#pragma once

namespace strata::test {

struct FakeRuntime {
  int launches = 0;
  int synchronizations = 0;
  int pinned_allocations = 0;  // not freed yet
  const void* last_stream = nullptr;
  int launch_error = 0;  // answers of the next calls, as cudaError_t
  int synchronize_error = 0;
};

FakeRuntime& fake_runtime();

}  // namespace strata::test
