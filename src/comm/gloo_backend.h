// Process groups of Gloo: the only door to its headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace strata::comm {

struct GlooOptions {
  // Where the others reach this rank: a network interface, else a host name or address of this machine.
  std::string interface = "";
  std::string address = "127.0.0.1";
  std::chrono::milliseconds timeout{};  // of the connections to be made
};

// Returns when all `world` ranks have called it with the same store and are connected with each other. Throws:
// CommError.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank,
                                                    std::size_t world, const GlooOptions& options);

}  // namespace strata::comm
