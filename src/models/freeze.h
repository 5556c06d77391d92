// Which parameter groups stay as they are while others are trained.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "zero/layer.h"

namespace strata::models {

// Makes the groups whose parameters `prefixes` name not trainable. A prefix is whole parts of a name: "model.layers.1"
// names what begins with "model.layers.1." and not layer 10. Throws: ConfigError for a prefix that names nothing, where
// only a part of a group is named, and where nothing is left to train.
void freeze(std::vector<zero::GroupDecl>& groups, std::span<const std::string> prefixes);

}  // namespace strata::models
