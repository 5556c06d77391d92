// Weights for training from scratch: a pure function of seed, parameter and element, whatever the placement.
#pragma once

#include <cstdint>
#include <string>

#include "core/buffer.h"
#include "core/parallel.h"

namespace strata::engine {

// Fills elements of parameter `name` from element `first` on: norms get 1, biases 0, the rest a normal distribution
// with standard deviation 0.02, as transformers initialises these models. The threads change no bit.
void random_weights(Parallel& threads, const std::string& name, std::uint64_t seed, std::uint64_t first,
                    TensorSpan destination);

}  // namespace strata::engine
