// Root mean square normalisation.
#pragma once

#include <ATen/core/Tensor.h>

namespace strata::models {

// x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019, equation 4), in fp32 inside.
// Returns x's type, rounded once.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace strata::models
