// One rank of a job as a process, for job_failure_test: joins, then runs collectives on both channels until it has done
// `steps` of them, and ends as a program should when it or another rank fails.
// Usage: rank_process RANK WORLD PORT AGENT_STORE STEPS THROW_AFTER_MS LOST_AFTER_MS. Steps of 0: for ever.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "comm/job.h"
#include "core/error.h"
#include "core/host_device.h"
#include "support/plain_math.h"

namespace {

using namespace strata;
using std::chrono_literals::operator""s;

[[noreturn]] void end(const std::string& reason, int exit_code) {
  // One call, so that lines of two threads do not mix; _exit, because a thread may hang in a collective.
  std::cerr << "reason: " + reason + "\n" << std::flush;
  _exit(exit_code);
}

void train(comm::Job& job, std::size_t steps, std::chrono::milliseconds throw_after) {
  const auto start = std::chrono::steady_clock::now();
  test::PlainMath math;
  HostDevice device(std::uint64_t{64} << 20);
  const auto all =
      job.communicator(math, device.allocate(comm::communicator_staging_bytes(job.world()), MemoryTag::Staging));
  const std::size_t numel = 300000 * job.world();
  const Buffer memory = device.allocate(numel * sizeof(float), MemoryTag::Gather);
  const auto stream = device.create_stream("comm");  // ends first, and with it what uses the others
  const TensorSpan full{memory.data(), DType::F32, numel};
  std::cerr << "connected\n" << std::flush;
  for (std::size_t step = 0; steps == 0 || step < steps; ++step) {
    all->all_gather(*stream, full);
    all->reduce_scatter(*stream, full);
    double tokens = 1;
    all->all_reduce_sum({&tokens, 1});
    if (tokens != static_cast<double>(job.world())) throw DataError("a wrong sum");
    stream->record().wait();
    if (throw_after.count() >= 0 && std::chrono::steady_clock::now() - start >= throw_after)
      throw DataError("bad batch");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  comm::RankInfo info;
  info.rank = std::stoul(argv[1]);
  info.world = std::stoul(argv[2]);
  info.master_port = static_cast<std::uint16_t>(std::stoul(argv[3]));
  info.agent_store = std::stoi(argv[4]) != 0;
  std::unique_ptr<comm::Job> job;
  try {
    job = comm::Job::join(info, {.watch = {.lost_after = std::chrono::milliseconds(std::stol(argv[7]))}});
  } catch (const CommError& e) {
    end(e.what(), 6);
  }
  comm::RankWatch& watch = *job->watch();
  watch.on_lost([&](const std::string& reason) {
    job->abort(std::make_exception_ptr(CommError(reason)));
    std::this_thread::sleep_for(2s);  // in which the main thread ends the process, unless it hangs
    end(reason, 6);
  });
  std::cerr << "joined\n" << std::flush;
  try {
    train(*job, std::stoul(argv[5]), std::chrono::milliseconds(std::stol(argv[6])));
    watch.leave();
  } catch (const CommError& e) {
    end(job->report_failure(e, 6), 6);
  } catch (const Error& e) {
    job->report_failure(e, 4);
    end(e.what(), 4);
  }
  return 0;
}
