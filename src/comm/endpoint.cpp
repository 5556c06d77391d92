#include "comm/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace strata::comm {
namespace {

using std::chrono::steady_clock;
using std::chrono_literals::operator""ms;

class Socket {
 public:
  explicit Socket(int family, int flags = 0) : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string message(int error) {
  return std::generic_category().message(error);
}
std::string named(const std::string& host, std::uint16_t port) {
  return "MASTER_ADDR=" + host + ", MASTER_PORT=" + std::to_string(port);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null with the resolver's error.
std::pair<Addresses, int> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {Addresses(error == 0 ? found : nullptr, freeaddrinfo), error};
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

struct SocketName {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
};

// 0, or errno.
int bind_and_listen(int fd, const sockaddr* address, socklen_t size) {
  const int on = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 || bind(fd, address, size) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    return errno;
  }
  return 0;
}

// 0, or errno.
int try_connect(const Socket& socket, const addrinfo& to, std::chrono::milliseconds patience) {
  if (socket.fd() < 0) return errno;
  if (connect(socket.fd(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{socket.fd(), POLLOUT, 0};
  const int ready = poll(&wait, 1, static_cast<int>(patience.count()));
  if (ready == 0) return ETIMEDOUT;
  if (ready < 0) return errno;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string own_address(int fd) {
  SocketName name;
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, name.get(), &name.size) != 0) throw CommError("getsockname: " + message(errno));
  const int error = getnameinfo(name.get(), name.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) throw CommError(std::string("getnameinfo: ") + gai_strerror(error));
  return text;
}

}  // namespace

Listener listen_on(const std::string& host, std::uint16_t port) {
  const auto [addresses, unresolved] = resolve(host, port);
  if (!addresses) throw CommError("cannot serve at " + named(host, port) + ": " + gai_strerror(unresolved));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  const bool local = is_loopback(addresses->ai_addr);
  const sockaddr* const address = local ? addresses->ai_addr : reinterpret_cast<const sockaddr*>(&any);
  const socklen_t size = local ? addresses->ai_addrlen : socklen_t{sizeof any};

  Socket socket(address->sa_family);
  if (const int error = bind_and_listen(socket.fd(), address, size); error != 0) {
    const std::string hint =
        error == EADDRINUSE ? ". Another process listens there, perhaps an earlier run that has not ended: end it, or "
                              "give this job another MASTER_PORT, the same on all ranks"
                            : "";
    throw CommError("cannot serve at " + named(host, port) + ": " + message(error) + hint);
  }
  SocketName name;
  if (getsockname(socket.fd(), name.get(), &name.size) != 0) throw CommError("getsockname: " + message(errno));
  const in_port_t bound = name.get()->sa_family == AF_INET ? reinterpret_cast<sockaddr_in*>(name.get())->sin_port
                                                           : reinterpret_cast<sockaddr_in6*>(name.get())->sin6_port;
  return {socket.release(), ntohs(bound), local ? host : "127.0.0.1"};
}

std::string wait_for_listener(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout) {
  const auto until = steady_clock::now() + timeout;
  std::string last;
  for (;;) {
    const auto [addresses, unresolved] = resolve(host, port);
    if (!addresses) {
      last = gai_strerror(unresolved);
      if (unresolved != EAI_AGAIN) throw CommError("MASTER_ADDR=" + host + " is not the name of a machine: " + last);
    }
    for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
      const Socket socket(to->ai_family, SOCK_NONBLOCK);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock::now());
      const int error = try_connect(socket, *to, std::clamp(left, 100ms, 5000ms));
      if (error == 0) return own_address(socket.fd());
      last = message(error);
    }
    if (steady_clock::now() >= until) break;
    std::this_thread::sleep_for(100ms);  // the other side is a process that starts
  }
  throw CommError("nobody serves this job at " + named(host, port) + " (" + last + " for " +
                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(timeout).count()) +
                  " s): rank 0 or the launcher should. Has it started, and can this machine reach it?");
}

std::vector<std::string> network_interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw CommError("cannot list the network interfaces: " + message(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
    const bool internet =
        i->ifa_addr != nullptr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    if (internet) names.insert(i->ifa_name);
  }
  return {names.begin(), names.end()};
}

void require_interface(const std::string& name, const std::string& setting) {
  const std::vector<std::string> there = network_interfaces();
  if (std::find(there.begin(), there.end(), name) != there.end()) return;
  std::string list;
  for (const std::string& other : there) list += (list.empty() ? "" : ", ") + other;
  throw CommError(setting + "=" + name +
                  ": this machine has no network interface of that name with an address. There " +
                  "are: " + (list.empty() ? "none" : list));
}

}  // namespace strata::comm
