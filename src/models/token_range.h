// Checks that ids lie inside a model's vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace strata::models {

// Throws: DataError naming the smallest or largest of `ids` when it is outside [0, vocab_size). `what` is "token" or
// "label".
void check_token_range(const at::Tensor& ids, std::int64_t vocab_size, std::string_view what);

}  // namespace strata::models
