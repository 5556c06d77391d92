// The candidate that a misspelt name most likely stands for.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace strata::engine {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`: the restricted
// Damerau-Levenshtein distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The closest candidate, the first of equals; empty where none is closer than a third of the name's length (at least
// 2). A candidate with dots is also tried by its last part, so "optimizer" finds "strata.placement.optimizer".
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace strata::engine
