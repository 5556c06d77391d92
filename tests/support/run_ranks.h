// Ranks of a test, each on a thread of its own.
#pragma once

#include <exception>
#include <thread>
#include <vector>

namespace strata::test {

// Calls fn(rank) on one thread per rank. Rethrows what the lowest failing rank threw, once all have ended.
template <typename Fn>
void run_ranks(std::size_t world, Fn fn) {
  std::vector<std::exception_ptr> failures(world);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        try {
          fn(r);
        } catch (...) {
          failures[r] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace strata::test
