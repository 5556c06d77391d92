// FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv/): a hash that is the same in every process and run.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace strata {

class Fnv1a {
 public:
  Fnv1a() = default;
  explicit Fnv1a(std::string_view bytes) { add(bytes); }

  void add(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  // Its bytes as they lie in memory.
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    add(std::string_view(bytes, sizeof value));
  }

  std::uint64_t value() const { return value_; }
  // As many of its bits as a double holds exactly: for ranks that compare.
  double as_double() const { return static_cast<double>(value_ >> 11); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace strata
