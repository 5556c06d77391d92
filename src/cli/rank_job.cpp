#include "cli/rank_job.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <system_error>
#include <thread>

#include "cli/exit_code.h"
#include "comm/job.h"
#include "core/cpu_share.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/cuda_plugin.h"
#include "engine/job_communicator.h"

namespace strata::cli {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

// After a failure a rank ends by itself once its collectives are aborted. One that is busy elsewhere, waits for a store
// whose machine is gone, or for a driver that does not answer, is ended after so long. The rank that failed has the
// most to clean up, and is waited for by nobody.
constexpr auto kUntilEnded = 3s, kUntilCleanedUp = 30s;
constexpr auto kUntilLeft = 30s;  // from there until the job is over: others may still ask this rank for the reason
constexpr auto kPause = 100ms;    // between looks into the store
constexpr auto kFirstWord = 10s, kNextWord = 60s;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000)));
}

std::string names_of_others(std::size_t world) {
  return world == 2 ? "rank 1 waits" : "ranks 1 to " + std::to_string(world - 1) + " wait";
}

}  // namespace

RankJob::RankJob(const comm::RankInfo& info, const engine::StrataConfig& strata) : info_(info) {
  if (info.world == 1) return;
  const engine::StrataConfig::Comm& settings = strata.comm;
  if (strata.ranks_per_node) ranks_per_node_ = static_cast<std::size_t>(*strata.ranks_per_node);
  if (!leads()) log::set_level(log::Level::Warning);
  comm::JobOptions options;
  options.collective_timeout = milliseconds_of(settings.timeout);
  options.join_timeout = milliseconds_of(settings.join_timeout);
  options.interface = settings.interface;
  job_ = comm::Job::join(info, options);
  // Not through job_: it is empty while the job ends, which waits for the watch.
  job_->watch()->on_lost([this, job = job_.get()](const std::string& reason) { on_lost(*job, reason); });
}

RankJob::~RankJob() {
  reach(Stage::BodyOver);
  job_.reset();
  reach(Stage::JobOver);
  if (ending_.joinable()) ending_.join();  // nobody else makes one any more
}

void RankJob::reach(Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  changed_.notify_all();
}

std::filesystem::path RankJob::own_path(std::filesystem::path path) const {
  if (rank() > 0 && !path.empty()) {
    path.replace_extension("rank" + std::to_string(rank()) + path.extension().string());
  }
  return path;
}

// On the watch's thread.
void RankJob::on_lost(comm::Job& job, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    lost_ = reason;
  }
  end_within(kUntilEnded, reason, kDeviceFailed);
  job.abort(std::make_exception_ptr(CommError(reason)));
}

void RankJob::end_within(std::chrono::seconds patience, const std::string& reason, int exit_code) {
  const auto end = [reason, exit_code] {
    std::cerr << "strata: error: " << reason << std::endl;
    ::_exit(exit_code);
  };
  const std::lock_guard lock(mutex_);
  if (ending_.joinable()) return;
  try {
    ending_ = std::thread([this, patience, end] {
      std::unique_lock waiting(mutex_);
      const auto reached = [&](Stage stage, std::chrono::seconds within) {
        return changed_.wait_for(waiting, within, [&] { return stage_ >= stage; });
      };
      if (!reached(Stage::BodyOver, patience) || !reached(Stage::JobOver, kUntilLeft)) end();
    });
  } catch (const std::system_error&) {  // no thread is left
    end();
  }
}

void RankJob::throw_if_lost() {
  const std::lock_guard lock(mutex_);
  if (lost_) throw CommError(*lost_);
}

std::string RankJob::from_rank_zero(const std::string& what, const std::function<std::string()>& make) {
  if (!job_) return make();
  const std::string key = "from_rank_zero/" + std::to_string(asked_++);
  if (leads()) {
    std::string text = make();
    throw_if_lost();
    job_->publish(key, text);
    return text;
  }
  const auto begin = steady_clock::now();
  auto next_word = begin + kFirstWord;
  for (;;) {
    throw_if_lost();
    if (std::optional<std::string> text = job_->look_up(key)) return *text;
    if (rank() == 1 && steady_clock::now() >= next_word) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - begin);
      std::cerr << "strata: " << names_of_others(info_.world) << " for rank 0 to prepare " << what << " ("
                << waited.count() << " s so far)" << std::endl;
      next_word += kNextWord;
    }
    std::this_thread::sleep_for(kPause);  // there is no event: the store is another process
  }
}

void RankJob::join(engine::EngineConfig& config) {
  if (!job_) return;
  take_gpu(config);
  engine::connect_ranks(*job_, ranks_per_node_.value_or(info_.local_world), config);
  config.local_ranks = info_.local_world;
  // Of the jobs on this machine, only this one meets there.
  config.job = info_.master_addr + ":" + std::to_string(info_.master_port) + info_.store_prefix;
  bind_process(cpu_share(*config.comm));
}

// CUDA_VISIBLE_DEVICES may leave each rank one GPU, which then is the first of its process.
void RankJob::take_gpu(engine::EngineConfig& config) const {
  if (!config.cuda_device) return;
  const engine::CudaDevices devices = engine::cuda_devices();
  const auto several = static_cast<std::size_t>(devices.count);
  if (several > 1) config.cuda_device = static_cast<int>(info_.local_rank);
  const bool sees_all = several > 1 || !devices.why_no_more.empty();
  if (sees_all && info_.local_world > several) {
    throw ConfigError(std::to_string(info_.local_world) + " ranks on a machine with " + std::to_string(several) +
                      (several == 1 ? " GPU" : " GPUs") +
                      (devices.why_no_more.empty() ? "" : " (not more: " + devices.why_no_more + ")") +
                      ": start as many ranks as there are GPUs, or set strata.device: host");
  }
}

int RankJob::run(const std::function<int()>& body) {
  const int code = guard([&] {
    const int of_body = body();
    if (job_) job_->shut_down();
    return of_body;
  });
  if (job_) job_->watch()->leave();
  return code;
}

int RankJob::guard(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& failure) {
    if (!job_ || told_) throw;
    fail(failure);
  }
}

void RankJob::fail(const std::exception& failure) {
  told_ = true;
  const int code = exit_code_of(std::current_exception());
  const std::string first = job_->report_failure(failure, code);
  end_within(kUntilCleanedUp, first, code);
  job_->abort(std::make_exception_ptr(CommError(first)));
  if (first.starts_with("rank " + std::to_string(rank()) + " failed first: ")) throw;
  if (code == kDeviceFailed) throw CommError(first);
  // What one rank finds out alone all may throw, and whoever is quickest is the first: each has a cause of its own.
  log::error(first);
  throw;
}

}  // namespace strata::cli
