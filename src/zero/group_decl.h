// Declarations: which parameters a model has and which of them are gathered together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::zero {

struct ParamDecl {
  std::string name;                 // as in the checkpoint: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // row-major
  bool decay = true;                // weight decay applies (not to norms and biases)

  std::uint64_t numel() const {
    std::uint64_t n = 1;
    for (const std::int64_t d : shape) n *= static_cast<std::uint64_t>(d);
    return n;
  }
};

// Parameters that are unsharded, reduced and updated together.
struct GroupDecl {
  std::string name;  // "model.layers.0", "model.embed_tokens", "head"
  std::vector<ParamDecl> params;
  // Frozen otherwise: gathered like others, but without gradient, states and updates.
  bool trainable = true;
};

}  // namespace strata::zero
