// From a type's index to its encoding. C++17.
#pragma once

#include "core/encodings.h"
#include "kernels/launch.h"

namespace strata::kernels {

// Returns fn(the encoding), or the error for an index that no encoding has.
template <typename Fn>
int with_encoding(int type, Fn&& fn) {
  switch (type) {
    case encoding::F32::kIndex:
      return fn(encoding::F32{});
    case encoding::Bf16::kIndex:
      return fn(encoding::Bf16{});
    case encoding::F16::kIndex:
      return fn(encoding::F16{});
    default:
      return kInvalidValue;
  }
}

}  // namespace strata::kernels
