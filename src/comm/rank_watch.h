// Who of the ranks is alive, and what ended the job first.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace strata::comm {

// Where the job's store is.
struct StoreAddress {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string prefix = "";        // of all keys of the job
  bool serves = false;            // this process serves it, so it must outlive the others' last look
  std::string server = "rank 0";  // who serves it, for messages
};

struct WatchOptions {
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds lost_after{8000};  // without a heartbeat
};

// Writes this rank's heartbeat to the store, reads those of the others and the first failure: one reason for the whole
// job, that of whoever was first. A rank that is silent for `lost_after`, a store that is, and a store that is gone are
// failures as well.
//
// Two threads: one talks to the store over a connection of its own, one watches the first, because a call to a store
// whose process is stopped never returns. All functions from any thread.
class RankWatch {
 public:
  // Requires: all ranks have joined the job or are about to, within `lost_after`.
  RankWatch(const StoreAddress& store, std::size_t rank, std::size_t world, WatchOptions options);
  // Without leave() or a failure before, the others hear that this rank ended early.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // `fn(reason)` is called once, on a thread of the watch, when the job has failed elsewhere; at once where it has
  // already. It may end the process; it must not destroy the watch.
  void on_lost(std::function<void(const std::string& reason)> fn);

  // This rank has failed. Returns the job's first reason, which everybody should print: "rank 2 failed first: ...".
  // on_lost is not called afterwards.
  std::string report_failure(const std::string& reason, int exit_code);
  // The job's first reason, once it is known; waits for it at most `patience`. A rank whose connection was closed asks
  // here, because the one that closed it says why.
  std::optional<std::string> first_failure(std::chrono::milliseconds patience);
  // The exit code that the first one to fail gave, once a failure is known.
  std::optional<int> first_exit_code() const;

  // This rank has done its work; its silence is no failure from now on. Where this process serves the store, returns
  // when the others have left, too.
  void leave();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace strata::comm
