#include "comm/gloo_backend.h"

// Torch's wheel has the code of Gloo inside libtorch_cpu and not its headers; those of Debian's libgloo-dev serve, and
// libgloo itself must never be linked.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/c10d_text.h"
#include "core/error.h"

namespace strata::comm {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, std::size_t rank,
                                                    std::size_t world, const GlooOptions& options) {
  using c10d::ProcessGroupGloo;
  try {
    auto gloo = ProcessGroupGloo::Options::create(options.timeout);
    gloo->threads = 1;  // they run c10d's own collectives, which nobody calls
    gloo->devices.push_back(options.interface.empty() ? ProcessGroupGloo::createDeviceForHostname(options.address)
                                                      : ProcessGroupGloo::createDeviceForInterface(options.interface));
    return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(rank), static_cast<int>(world),
                                                 std::move(gloo));
  } catch (const std::exception& e) {
    const std::string where = options.interface.empty() ? options.address : "interface " + options.interface;
    throw CommError("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                    " cannot connect with the others through " + where + ": " + brief(e.what()) +
                    ". Name the interface that reaches them with GLOO_SOCKET_IFNAME");
  }
}

}  // namespace strata::comm
