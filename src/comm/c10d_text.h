// Texts of messages: what c10d and Gloo say in their exceptions, without source paths, advice and stack traces; times.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace strata::comm {

// "[/pytorch/.../pair.cc:534] Connection closed by peer [10.0.0.2]:4711. This is ..." gives
// "Connection closed by peer [10.0.0.2]:4711".
inline std::string brief(std::string_view what) {
  what = what.substr(0, what.find('\n'));
  if (what.starts_with("[/")) {
    const std::size_t end = what.find("] ");
    if (end != std::string_view::npos) what.remove_prefix(end + 2);
  }
  what = what.substr(0, what.find(". This is"));
  return std::string(what);
}

// "0.3 s".
inline std::string seconds_text(std::chrono::milliseconds time) {
  const auto tenths = time.count() / 100;
  std::string text = std::to_string(tenths / 10);
  if (tenths % 10 != 0) text.append(1, '.').append(std::to_string(tenths % 10));
  return text.append(" s");
}

}  // namespace strata::comm
