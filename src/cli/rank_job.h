// This process as one rank of a job, or alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/rank_info.h"
#include "engine/engine_config.h"
#include "engine/run_config.h"

namespace strata::comm {
class Job;
}

namespace strata::cli {

// Main thread only.
class RankJob {
 public:
  // With more than one rank: meets the others. Rank 0 logs as ever, the others only warnings and errors.
  // Throws: CommError.
  RankJob(const comm::RankInfo& info, const engine::StrataConfig& strata);
  ~RankJob();
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  // Whether this rank prints, and writes what is written once.
  bool leads() const { return info_.rank == 0; }
  std::size_t rank() const { return info_.rank; }

  // Where this rank writes what every rank has one of: trace.json, trace.rank1.json, ... Empty stays empty.
  std::filesystem::path own_path(std::filesystem::path path) const;

  // What rank 0's `make` returns, on every rank. The others wait outside of any collective, so that no time-out is
  // running, and rank 1 says now and then that they wait for `what`. Every rank calls this in the same order.
  std::string from_rank_zero(const std::string& what, const std::function<std::string()>& make);

  // Collective: gives the engine its communicators and this process its CPUs. Call it before the engine makes threads.
  void join(engine::EngineConfig& config);

  // Runs `body`, around everything. A failure is told to the other ranks, which then fail as well; where another rank
  // failed first, the error is a CommError that says so.
  int run(const std::function<int()>& body);
  // Likewise, around what uses an engine that outlives it: the failure must be told, and collectives under way aborted,
  // before the engine's destructor waits for them.
  int guard(const std::function<int()>& body);

 private:
  enum class Stage : std::uint8_t { Body, BodyOver, JobOver };

  [[noreturn]] void fail(const std::exception& failure);
  void on_lost(comm::Job& job, const std::string& reason);
  void end_within(std::chrono::seconds patience, const std::string& reason, int exit_code);
  void reach(Stage stage);
  void throw_if_lost();
  void take_gpu(engine::EngineConfig& config) const;

  comm::RankInfo info_;
  std::optional<std::size_t> ranks_per_node_;  // as configured
  std::unique_ptr<comm::Job> job_;             // null: alone
  std::size_t asked_ = 0;                      // calls of from_rank_zero()
  bool told_ = false;                          // this rank's failure

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> lost_;  // guarded by mutex_: why the job has ended elsewhere
  Stage stage_ = Stage::Body;        // guarded by mutex_
  std::thread ending_;               // guarded by mutex_: ends the process where it does not end by itself
};

}  // namespace strata::cli
