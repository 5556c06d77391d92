#include "models/rms_norm.h"

#include <ATen/TensorOperators.h>

namespace strata::models {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = (wide * wide).mean(-1, /*keepdim=*/true).add(epsilon).rsqrt();
  return (wide * scale * weight.to(at::kFloat)).to(x.scalar_type());
}

}  // namespace strata::models
