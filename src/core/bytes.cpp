#include "core/bytes.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <limits>

#include "core/error.h"

namespace strata {
namespace {

struct Unit {
  std::string_view suffix;
  std::uint64_t bytes;
};

constexpr std::array<Unit, 13> kUnits = {{{"B", 1},
                                          {"K", 1'000},
                                          {"KB", 1'000},
                                          {"M", 1'000'000},
                                          {"MB", 1'000'000},
                                          {"G", 1'000'000'000},
                                          {"GB", 1'000'000'000},
                                          {"T", 1'000'000'000'000},
                                          {"TB", 1'000'000'000'000},
                                          {"KiB", std::uint64_t{1} << 10},
                                          {"MiB", std::uint64_t{1} << 20},
                                          {"GiB", std::uint64_t{1} << 30},
                                          {"TiB", std::uint64_t{1} << 40}}};

[[noreturn]] void refuse(std::string_view text, const char* why) {
  throw ConfigError("cannot read '" + std::string(text) + "' as a byte quantity: " + why +
                    ". Write for example 20GiB, 1.5 GB, 64M, 5e8 or 4096.");
}

// A decimal number as digits * 10^exponent, so that 0.1 GB is exactly 100000000 bytes and 0.1 B is seen to be
// fractional.
struct Decimal {
  std::uint64_t digits = 0;
  int exponent = 0;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Moves the digits at the front of `rest` into `decimal`; returns how many there were.
int take_digits(std::string_view text, std::string_view& rest, Decimal& decimal) {
  int taken = 0;
  while (!rest.empty() && is_digit(rest.front())) {
    const auto digit = static_cast<std::uint64_t>(rest.front() - '0');
    if (decimal.digits > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) refuse(text, "too many digits");
    decimal.digits = decimal.digits * 10 + digit;
    rest.remove_prefix(1);
    ++taken;
  }
  return taken;
}

Decimal take_decimal(std::string_view text, std::string_view& rest) {
  Decimal decimal;
  if (take_digits(text, rest, decimal) == 0) refuse(text, "it does not start with a digit");
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    const int fraction = take_digits(text, rest, decimal);
    if (fraction == 0) refuse(text, "no digit follows the point");
    decimal.exponent = -fraction;
  }
  if (!rest.empty() && (rest.front() == 'e' || rest.front() == 'E')) {
    rest.remove_prefix(1);
    if (rest.starts_with('+') && !rest.starts_with("+-")) rest.remove_prefix(1);
    int exponent = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), exponent);
    if (error != std::errc{} || exponent < -99 || exponent > 99) refuse(text, "the exponent is not a small integer");
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    decimal.exponent += exponent;
  }
  return decimal;
}

// digits * unit * 10^exponent without rounding. 128 bits hold digits * unit: 64 + 40 bits.
std::uint64_t exact_product(std::string_view text, Decimal decimal, std::uint64_t unit_bytes) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide kMax = std::numeric_limits<std::uint64_t>::max();
  Wide value = static_cast<Wide>(decimal.digits) * unit_bytes;
  for (; decimal.exponent < 0 && value != 0; ++decimal.exponent) {
    if (value % 10 != 0) refuse(text, "it is not a whole number of bytes");
    value /= 10;
  }
  for (; decimal.exponent > 0 && value != 0; --decimal.exponent) {
    if (value > kMax) break;
    value *= 10;
  }
  if (value > kMax) refuse(text, "it is 2^64 bytes or more");
  return static_cast<std::uint64_t>(value);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array<const char*, 6> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t name = 0;
  // 1023.995 and more would print as 1024.00 of the smaller unit.
  for (; value >= 1023.995 && name + 1 < kNames.size(); ++name) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kNames[name]);
  return text.data();
}

std::uint64_t parse_bytes(std::string_view text) {
  std::string_view rest = text;
  const Decimal decimal = take_decimal(text, rest);
  if (rest.empty()) return exact_product(text, decimal, 1);
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (unit.suffix == rest) return exact_product(text, decimal, unit.bytes);
  }
  refuse(text, "the unit is none of B, KiB, MiB, GiB, TiB, K, M, G, T, KB, MB, GB, TB");
}

}  // namespace strata
