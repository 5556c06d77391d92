#include "nvme/named_memory.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "support/child_process.h"

namespace strata::nvme {
namespace {

// Of this process, so that tests that run at once do not meet.
std::string name_for(const char* test) {
  return "strata-test-" + std::to_string(::getpid()) + "-" + test;
}

int& number_in(const NamedMemory& memory) {
  return *static_cast<int*>(memory.data());
}

TEST(NamedMemory, IsTheSameForAllWhoNameItAndZeroAtFirst) {
  const NamedMemory first(name_for("same"), 4096);
  const NamedMemory second(name_for("same"), 4096);
  const NamedMemory other(name_for("other"), 4096);
  EXPECT_EQ(number_in(first), 0);

  number_in(first) = 7;

  EXPECT_EQ(number_in(second), 7);
  EXPECT_EQ(number_in(other), 0);
}

TEST(NamedMemory, IsFoundByAnotherProcess) {
  const std::string name = name_for("process");
  NamedMemory mine(name, 4096);
  number_in(mine) = 7;

  test::ChildProcess child([&] {
    const NamedMemory theirs(name, 4096);
    number_in(theirs) += 1;
  });

  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(number_in(mine), 8);
}

TEST(NamedMemory, IsForgottenWithTheProcessThatMadeIt) {
  const std::string name = name_for("forgotten");
  test::ChildProcess child([&] {
    const NamedMemory memory(name, 4096);
    number_in(memory) = 7;
    (void)::raise(SIGKILL);
  });
  EXPECT_EQ(WTERMSIG(child.wait()), SIGKILL);

  EXPECT_EQ(number_in(NamedMemory(name, 4096)), 0);
}

TEST(NamedMemory, StaysWithThoseWhoHaveItWhenItsMakerIsGone) {
  std::optional<NamedMemory> maker(std::in_place, name_for("stays"), 4096);
  const NamedMemory finder(name_for("stays"), 4096);
  number_in(*maker) = 7;

  maker.reset();

  EXPECT_EQ(number_in(finder), 7);
}

TEST(NamedMemory, IsMadeOnceWhenManyAskAtOnce) {
  const std::string name = name_for("once");
  std::vector<std::optional<NamedMemory>> memories(16);
  {
    std::vector<std::jthread> threads;
    for (std::optional<NamedMemory>& memory : memories) {
      threads.emplace_back([&memory, &name] { memory.emplace(name, 4096); });
    }
  }

  number_in(*memories[0]) = 7;

  for (const std::optional<NamedMemory>& memory : memories) EXPECT_EQ(number_in(*memory), 7);
}

TEST(NamedMemory, GivesAByteToOneAtATime) {
  NamedMemory first(name_for("claim"), 4096);
  NamedMemory second(name_for("claim"), 4096);
  EXPECT_TRUE(first.claim(3));
  EXPECT_FALSE(second.claim(3));
  EXPECT_TRUE(second.claim(4));

  first.give_up(3);

  EXPECT_TRUE(second.claim(3));
}

TEST(NamedMemory, FreesTheBytesOfAProcessThatIsKilled) {
  NamedMemory mine(name_for("killed"), 4096);
  const std::string name = name_for("killed");
  test::ChildProcess child([&] {
    NamedMemory theirs(name, 4096);
    if (theirs.claim(0)) (void)::raise(SIGKILL);
  });
  EXPECT_EQ(WTERMSIG(child.wait()), SIGKILL);

  EXPECT_TRUE(mine.claim(0));
}

TEST(NamedMemory, SaysSoWhenTheNameLeadsToNoMemory) {
  const std::string name = name_for("taken");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(socket, SOMAXCONN), 0);

  try {
    const NamedMemory memory(name, 4096);
    ADD_FAILURE() << "there is no such memory";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("has the name and not the memory"), std::string::npos) << error.what();
  }
  ::close(socket);
}

}  // namespace
}  // namespace strata::nvme
