// Settings of a decoder: types, and what of it is trained.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace strata::models {

struct DecoderOptions {
  // GroupType computes in the type of the weights. Fp32 upcasts a weight each time it is used and keeps activations in
  // fp32: for hosts whose 16-bit matrix products are slower than fp32 ones.
  enum class Compute : std::uint8_t { GroupType, Fp32 };

  at::ScalarType group_type = at::kFloat;  // of gathered weights: kFloat, kBFloat16 or kHalf
  Compute compute = Compute::GroupType;
  std::int64_t loss_chunk_tokens = 256;             // positions whose logits exist at once; changes bits
  std::vector<std::string> frozen_parameters = {};  // prefixes of names: freeze()
  // Of the GPU that computes; 0 where the host does. What memory that takes depends on it, and nothing else.
  std::size_t gpu_multiprocessors = 0;
};

// The type of activations and of the weights inside matrix products.
inline at::ScalarType compute_type(const DecoderOptions& options) {
  return options.compute == DecoderOptions::Compute::Fp32 ? at::kFloat : options.group_type;
}

}  // namespace strata::models
