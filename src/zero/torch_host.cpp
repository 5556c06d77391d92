#include "zero/torch_host.h"

#include <ATen/Parallel.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "core/error.h"

namespace strata::zero {
namespace {

double seconds_of_product(const at::Tensor& a, const at::Tensor& b) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {  // the first run pays for code generation and page faults
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor c = at::matmul(a, b);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::F32:
      return at::kFloat;
    case DType::BF16:
      return at::kBFloat16;
    case DType::F16:
      return at::kHalf;
    default:
      contract_violation("F32, BF16 or F16", "torch computes no weights of type " + std::string(name_of(type)),
                         __FILE__, __LINE__);
  }
}

void set_torch_threads(std::size_t threads) {
  at::set_num_threads(static_cast<int>(threads));
}

std::size_t torch_threads() {
  return static_cast<std::size_t>(at::get_num_threads());
}

double fp32_speed_over(DType narrow) {
  const at::Tensor a = at::ones({128, 768});
  const at::Tensor b = at::ones({768, 768});
  const double fp32 = seconds_of_product(a, b);
  const double in_16_bits = seconds_of_product(a.to(torch_type(narrow)), b.to(torch_type(narrow)));
  return fp32 > 0 ? in_16_bits / fp32 : 1.0;
}

}  // namespace strata::zero
