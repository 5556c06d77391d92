// Engines of one model on several ranks, each on a thread of its own.
#pragma once

#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "engine/engine.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"
#include "support/watchdog.h"

namespace strata::test {

// Calls fn(engine) on every rank, with drives of its own where the configuration names any. A rank that throws ends the
// others' collectives; what the lowest such rank threw is thrown once all have ended.
template <typename Fn>
void run_engines(const engine::EngineConfig& config, std::size_t ranks, Fn fn) {
  const Watchdog watchdog(std::to_string(ranks) + " ranks");
  PlainMath math;
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : comm::make_thread_ranks(ranks, math)) comms.push_back(std::move(comm));
  run_ranks(ranks, [&](std::size_t rank) {
    try {
      engine::EngineConfig mine = config;
      mine.comm = comms[rank];
      for (std::filesystem::path& path : mine.nvme_paths) {
        path /= "drive-of-rank-" + std::to_string(rank);
        std::filesystem::create_directories(path);
      }
      const std::unique_ptr<engine::Engine> engine = engine::Engine::create(mine);
      fn(*engine);
    } catch (...) {
      comms[rank]->abort(std::current_exception());
      throw;
    }
  });
}

}  // namespace strata::test
