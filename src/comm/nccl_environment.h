// What the environment may say to c10d's NCCL where a failed collective must become an error of this program.
#pragma once

#include <functional>
#include <string>

namespace strata::comm {

// `value_of(name)` is null where a variable is not set. Empty, or why these settings are refused: with them c10d
// neither ends a collective that is late nor says that it was.
inline std::string refused_nccl_environment(const std::function<const char*(const char*)>& value_of) {
  const auto text = [&](const char* name) {
    const char* const value = value_of(name);
    return std::string(value != nullptr ? value : "");
  };
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"}) {
    const std::string value = text(name);
    if (value.empty() || value == "1" || value == "2") continue;
    return std::string(name) + "=" + value +
           " leaves a late collective running for ever; take it out of the environment";
  }
  for (const char* name : {"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}) {
    const std::string value = text(name);
    if (value.empty() || value == "0") continue;
    return std::string(name) + "=" + value + " leaves nobody to watch collectives; take it out of the environment";
  }
  return "";
}

}  // namespace strata::comm
