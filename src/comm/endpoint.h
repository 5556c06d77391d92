// Where ranks meet, before there is any connection: sockets that say plainly what is wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace strata::comm {

// A listening TCP socket; 0 is any free port. Where `host` is this machine's loopback address it listens there alone,
// else on all addresses. The caller closes it. Throws: CommError that names MASTER_ADDR and MASTER_PORT.
struct Listener {
  int fd = -1;
  std::uint16_t port = 0;
  std::string reached_at = "";  // from this machine
};
Listener listen_on(const std::string& host, std::uint16_t port);

// Returns as soon as something listens at `host`:`port`, with this machine's own address on the way there. Throws:
// CommError that says what `timeout` was spent on.
std::string wait_for_listener(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);

// Names of this machine's network interfaces that have an address.
std::vector<std::string> network_interfaces();

// Throws: CommError that lists the interfaces when `name` is none of them. `setting` is where the name comes from.
void require_interface(const std::string& name, const std::string& setting);

}  // namespace strata::comm
