#include "models/freeze.h"

#include <algorithm>

#include "core/error.h"

namespace strata::models {
namespace {

bool names(const std::string& prefix, const std::string& parameter) {
  if (prefix.empty() || !parameter.starts_with(prefix)) return false;
  return prefix.back() == '.' || parameter.size() == prefix.size() || parameter[prefix.size()] == '.';
}

std::string names_of(std::span<const zero::GroupDecl> groups) {
  std::string text;
  for (const zero::GroupDecl& group : groups) text += (text.empty() ? "" : ", ") + group.name;
  return text;
}

}  // namespace

void freeze(std::vector<zero::GroupDecl>& groups, std::span<const std::string> prefixes) {
  std::vector<bool> used(prefixes.size(), false);
  for (zero::GroupDecl& group : groups) {
    const zero::ParamDecl* frozen = nullptr;
    const zero::ParamDecl* trained = nullptr;
    for (const zero::ParamDecl& param : group.params) {
      bool named = false;
      for (std::size_t i = 0; i < prefixes.size(); ++i) {
        if (!names(prefixes[i], param.name)) continue;
        used[i] = named = true;
      }
      (named ? frozen : trained) = &param;
    }
    if (frozen != nullptr && trained != nullptr) {
      throw ConfigError("frozen_parameters names a part of " + group.name + " only: " + frozen->name + ", but not " +
                        trained->name +
                        "; the parameters of a layer are gathered and updated together: name all of them or none");
    }
    group.trainable = frozen == nullptr;
  }
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    if (used[i]) continue;
    throw ConfigError("frozen_parameters: no parameter of the model begins with '" + prefixes[i] +
                      "'; its layers are " + names_of(groups));
  }
  if (std::none_of(groups.begin(), groups.end(), [](const zero::GroupDecl& group) { return group.trainable; })) {
    throw ConfigError("frozen_parameters names every parameter of the model, so that nothing is left to train");
  }
}

}  // namespace strata::models
