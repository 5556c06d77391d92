#include "comm/store_server.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/c10d_log.h"
#include "comm/c10d_text.h"
#include "comm/endpoint.h"
#include "core/error.h"

namespace strata::comm {

struct StoreServer::Store {
  c10::intrusive_ptr<c10d::TCPStore> server;
};

StoreServer::StoreServer(const std::string& host, std::uint16_t port) {
  quieten_c10d();
  // Our own socket: c10d's listens on all addresses always, and its error for a port in use does not name it.
  const Listener listener = listen_on(host, port);
  port_ = listener.port;
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.fd;  // closed by the server
  // The server is its own first client; not through `host`, which may be wrong: whoever joins finds out, and in time.
  try {
    store_ = std::make_unique<Store>(Store{c10::make_intrusive<c10d::TCPStore>(listener.reached_at, options)});
  } catch (const std::exception& e) {
    throw CommError("cannot serve the job's store at " + host + ":" + std::to_string(port_) + ": " + brief(e.what()));
  }
}

StoreServer::~StoreServer() = default;

}  // namespace strata::comm
