#include "zero/torch_host.h"

#include <ATen/Parallel.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

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

void set_torch_threads(std::size_t threads) {
  at::set_num_threads(static_cast<int>(threads));
}

std::size_t torch_threads() {
  return static_cast<std::size_t>(at::get_num_threads());
}

double fp32_over_bf16_speed() {
  const at::Tensor a = at::ones({128, 768});
  const at::Tensor b = at::ones({768, 768});
  const double fp32 = seconds_of_product(a, b);
  const double bf16 = seconds_of_product(a.to(at::kBFloat16), b.to(at::kBFloat16));
  return fp32 > 0 ? bf16 / fp32 : 1.0;
}

}  // namespace strata::zero
