// Ranks that are processes, one of which is killed, stopped or throws at a random moment: all end soon, with the reason
// of the first.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/store_server.h"
#include "support/free_port.h"
#include "support/temp_dir.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

extern char** environ;

namespace strata::test {
namespace {

using std::chrono::steady_clock;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;

// A process that is a rank; killed and reaped when it is forgotten.
class RankProcess {
 public:
  RankProcess(const std::string& output, const std::vector<std::string>& arguments) : output_(output) {
    std::vector<std::string> words = {STRATA_RANK_PROCESS};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int error = posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  }
  RankProcess(RankProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)), output_(other.output_) {}
  ~RankProcess() {
    if (pid_ == 0 || status_) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { ASSERT_EQ(::kill(pid_, number), 0); }
  bool ended() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return status_.has_value();
  }
  std::string how() const { return status_ ? "wait status " + std::to_string(*status_) + "\n" : "still runs\n"; }
  int exit_code() const { return status_ && WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -1; }
  std::string output() const {
    std::ifstream file(output_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // What it gave as the reason, of whichever thread came first.
  std::string reason() const {
    const std::string text = output();
    const std::size_t at = text.find("reason: ");
    return at == std::string::npos ? "" : text.substr(at + 8, text.find('\n', at) - at - 8);
  }

 private:
  pid_t pid_ = 0;
  std::string output_;
  std::optional<int> status_;
};

enum class Fault { Kill, Stop, Throw };

class JobFailures : public ::testing::Test {
 protected:
  static constexpr std::size_t kWorld = 3;

  // `victim` throws after `throw_after`, when that is not negative.
  std::vector<RankProcess> start(bool agent_store, std::size_t steps, std::size_t victim,
                                 std::chrono::milliseconds throw_after) {
    server_.reset();
    std::uint16_t port = 0;
    if (agent_store) {
      server_ = std::make_unique<comm::StoreServer>("127.0.0.1");
      port = server_->port();
    } else {
      port = free_port();
    }
    std::vector<RankProcess> ranks;
    for (std::size_t r = 0; r < kWorld; ++r) {
      const auto own_throw = r == victim ? throw_after : -1ms;
      ranks.emplace_back((dir_.path() / (std::to_string(files_++) + ".txt")).string(),
                         std::vector<std::string>{std::to_string(r), std::to_string(kWorld), std::to_string(port),
                                                  agent_store ? "1" : "0", std::to_string(steps),
                                                  std::to_string(own_throw.count()), "8000"});
    }
    return ranks;
  }
  // Returns whether `condition` holds before `patience` is over.
  static bool soon(std::chrono::seconds patience, const std::function<bool()>& condition) {
    const auto until = steady_clock::now() + patience;
    while (!condition()) {
      if (steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(10ms);
    }
    return true;
  }
  static bool all_say(const std::vector<RankProcess>& ranks, const std::string& word) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](const RankProcess& rank) { return rank.output().find(word) != std::string::npos; });
  }

  // `victim` fails `moment` after all have joined; the others must end soon and agree on the reason.
  void check_failure(Fault fault, std::size_t victim, std::chrono::milliseconds moment, bool agent_store) {
    SCOPED_TRACE("rank " + std::to_string(victim) +
                 (fault == Fault::Kill   ? " is killed"
                  : fault == Fault::Stop ? " is stopped"
                                         : " throws") +
                 " after " + std::to_string(moment.count()) + " ms, the store is " +
                 (agent_store ? "a launcher's" : "rank 0's"));
    auto ranks = start(agent_store, 0, victim, fault == Fault::Throw ? moment : -1ms);
    ASSERT_TRUE(soon(120s, [&] { return all_say(ranks, "joined"); })) << "ranks do not start";

    if (fault == Fault::Throw) {
      ASSERT_TRUE(soon(120s, [&] { return ranks[victim].ended(); }));
    } else {
      std::this_thread::sleep_for(moment);
      ranks[victim].signal(fault == Fault::Kill ? SIGKILL : SIGSTOP);
    }

    // A promise of the program, not a measurement: nobody waits longer for a rank that is lost.
    const auto since = steady_clock::now();
    const auto all_others_ended = [&] {
      std::size_t ended = 0;
      for (std::size_t r = 0; r < kWorld; ++r) ended += r != victim && ranks[r].ended() ? 1 : 0;
      return ended == kWorld - 1;
    };
    EXPECT_TRUE(soon(15s, all_others_ended));
    std::set<std::string> reasons;
    for (std::size_t r = 0; r < kWorld; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(ranks[r].exit_code(), 6) << ranks[r].how() << ranks[r].output();
      EXPECT_THAT(ranks[r].reason(), HasSubstr("rank " + std::to_string(victim)));
      reasons.insert(ranks[r].reason());
    }
    std::cout << "ended after " << std::chrono::duration<double>(steady_clock::now() - since).count()
              << " s: " << *reasons.begin() << '\n';
    if (fault == Fault::Throw) {
      EXPECT_EQ(ranks[victim].exit_code(), 4);
      EXPECT_EQ(reasons, std::set{"rank " + std::to_string(victim) + " failed first: bad batch"});
    }
    // Without the store there is nowhere to agree.
    if (agent_store || victim != 0) {
      EXPECT_EQ(reasons.size(), 1U) << ::testing::PrintToString(reasons);
    }
  }

  const Watchdog watchdog_{"processes that are ranks", 600s};
  TempDir dir_;
  std::unique_ptr<comm::StoreServer> server_;
  int files_ = 0;
};

TEST_F(JobFailures, WithoutAFailureAllEndWell) {
  for (const bool agent_store : {false, true}) {
    auto ranks = start(agent_store, 20, kWorld, -1ms);
    for (RankProcess& rank : ranks) {
      EXPECT_TRUE(soon(120s, [&] { return rank.ended(); }));
      EXPECT_EQ(rank.exit_code(), 0) << rank.output();
      EXPECT_EQ(rank.reason(), "");
    }
  }
}

TEST_F(JobFailures, AllEndWithTheFirstReason) {
  const std::uint64_t seed = test_seed(20262);
  std::mt19937_64 random(seed);
  const Fault faults[] = {Fault::Kill,  Fault::Throw, Fault::Stop, Fault::Kill,
                          Fault::Throw, Fault::Stop,  Fault::Kill, Fault::Kill};
  for (std::size_t i = 0; i < std::size(faults); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", failure " + std::to_string(i));
    const std::size_t victim = random() % kWorld;
    check_failure(faults[i], victim, std::chrono::milliseconds(random() % 1500), i % 2 == 0);
  }
}

TEST_F(JobFailures, TheRankThatServesTheStoreIsMissedToo) {
  for (const Fault fault : {Fault::Kill, Fault::Stop, Fault::Throw}) check_failure(fault, 0, 300ms, false);
}

}  // namespace
}  // namespace strata::test
