// What torch throws, as errors of this project.
#pragma once

#include <cstdint>
#include <functional>

namespace strata::zero {

// Runs `work`. What torch throws when it is out of memory leaves as OutOfBudget, and a failed call of CUDA as
// DeviceError, both with what to do next; everything else, OutOfBudget of a TorchAllocator included, leaves as it is.
// `planned_bytes` is what torch's tensors on a GPU may take, which the words of the refusal name; have_bytes() and
// need_bytes() are both that, because how much more there should be torch does not say.
void with_torch_failures(const std::function<void()>& work, std::uint64_t planned_bytes);

}  // namespace strata::zero
