// The seed of a random test.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace strata::test {

// STRATA_TEST_SEED when it is set, `fallback` otherwise; a test prints what it got with SCOPED_TRACE.
inline std::uint64_t test_seed(std::uint64_t fallback) {
  const char* const text = std::getenv("STRATA_TEST_SEED");
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

}  // namespace strata::test
