#include "models/activation_bound.h"

namespace strata::models {
std::uint64_t ActivationBound::bytes(std::int64_t, std::int64_t) const {
  return 0;
}
}  // namespace strata::models
