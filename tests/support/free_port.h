// A port for a process that starts later.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <random>

#include "comm/endpoint.h"
#include "core/error.h"

namespace strata::test {

// Below those that systems give to connections by themselves, of which one could take it before the process does.
inline std::uint16_t free_port() {
  std::random_device random;
  for (;;) {
    const auto port = static_cast<std::uint16_t>(10000 + random() % 6000);
    try {
      ::close(comm::listen_on("127.0.0.1", port).fd);
      return port;
    } catch (const CommError&) {  // in use
    }
  }
}

}  // namespace strata::test
