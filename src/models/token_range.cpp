#include "models/token_range.h"

#include <ATen/ops/aminmax.h>

#include <string>

#include "core/error.h"

namespace strata::models {

void check_token_range(const at::Tensor& ids, std::int64_t vocab_size, std::string_view what) {
  if (ids.numel() == 0) return;
  const auto [smallest, largest] = ids.aminmax();
  const std::int64_t low = smallest.item().toLong();
  const std::int64_t high = largest.item().toLong();
  if (low >= 0 && high < vocab_size) return;
  throw DataError(std::string(what) + " id " + std::to_string(low < 0 ? low : high) +
                  " is outside the model's vocabulary of " + std::to_string(vocab_size) +
                  ": was the data prepared with this model's tokenizer?");
}

}  // namespace strata::models
