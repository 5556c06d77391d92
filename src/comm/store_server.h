// The key-value store through which the ranks of a job find each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace strata::comm {

// Serves c10d's TCPStore from a thread of this process until it is destroyed: in rank 0, or in a launcher.
class StoreServer {
 public:
  // Port 0: any free one. Listens on all addresses unless `host` is this machine's loopback address. Throws: CommError.
  explicit StoreServer(const std::string& host, std::uint16_t port = 0);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Store;
  std::unique_ptr<Store> store_;
  std::uint16_t port_ = 0;
};

}  // namespace strata::comm
