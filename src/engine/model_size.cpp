#include "engine/model_size.h"

#include <algorithm>

#include "engine/parts.h"

namespace strata::engine {

ModelSize model_size(const std::filesystem::path& folder) {
  ModelSize size;
  for (const zero::GroupDecl& group : parameter_groups(hf::read_model_config(folder))) {
    std::uint64_t numel = 0;
    for (const zero::ParamDecl& param : group.params) numel += param.numel();
    if (size.parameters == 0) size.first_group = numel;
    size.parameters += numel;
    size.largest_group = std::max(size.largest_group, numel);
  }
  return size;
}

}  // namespace strata::engine
