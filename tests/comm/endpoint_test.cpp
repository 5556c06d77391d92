#include "comm/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/comm_failure.h"

namespace strata::test {
namespace {

using std::chrono_literals::operator""ms;
using ::testing::HasSubstr;

TEST(Endpoint, AListenerOnAnyPortIsFound) {
  const comm::Listener listener = comm::listen_on("127.0.0.1", 0);

  EXPECT_NE(listener.port, 0);
  EXPECT_EQ(comm::wait_for_listener("127.0.0.1", listener.port, 5000ms), "127.0.0.1");
  ::close(listener.fd);
}

TEST(Endpoint, APortInUseIsNamedWithWhatToDo) {
  const comm::Listener listener = comm::listen_on("127.0.0.1", 0);

  const std::string text = failure_of([&] { comm::listen_on("127.0.0.1", listener.port); });

  EXPECT_THAT(text, HasSubstr("MASTER_ADDR=127.0.0.1, MASTER_PORT=" + std::to_string(listener.port) +
                              ": Address already in use"));
  EXPECT_THAT(text, HasSubstr("another MASTER_PORT"));
  ::close(listener.fd);
}

TEST(Endpoint, NobodyAtThePortIsSaid) {
  const comm::Listener listener = comm::listen_on("127.0.0.1", 0);
  ::close(listener.fd);

  const std::string text = failure_of([&] { comm::wait_for_listener("127.0.0.1", listener.port, 200ms); });

  EXPECT_THAT(text, HasSubstr("nobody serves this job at MASTER_ADDR=127.0.0.1, MASTER_PORT="));
  EXPECT_THAT(text, HasSubstr("Connection refused"));
}

TEST(Endpoint, AHostNameThatIsNoneIsNamed) {
  EXPECT_THAT(failure_of([] { comm::listen_on("no such host", 0); }), HasSubstr("MASTER_ADDR=no such host"));
  EXPECT_THAT(failure_of([] { comm::wait_for_listener("no such host", 1, 200ms); }),
              HasSubstr("MASTER_ADDR=no such host is not the name of a machine"));
}

TEST(Endpoint, AWrongInterfaceIsNamedWithThoseThatExist) {
  EXPECT_THAT(comm::network_interfaces(), ::testing::Contains("lo"));
  comm::require_interface("lo", "GLOO_SOCKET_IFNAME");
  const std::string text = failure_of([] { comm::require_interface("eth99", "GLOO_SOCKET_IFNAME"); });
  EXPECT_THAT(text, HasSubstr("GLOO_SOCKET_IFNAME=eth99"));
  EXPECT_THAT(text, HasSubstr("There are: "));
  EXPECT_THAT(text, HasSubstr("lo"));
}

}  // namespace
}  // namespace strata::test
