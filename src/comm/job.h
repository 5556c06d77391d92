// This process as one rank of a job: joins the others, makes communicators, hears of failures.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_info.h"
#include "comm/rank_watch.h"
#include "core/buffer.h"
#include "core/communicator.h"
#include "core/shard_optimizer.h"

namespace strata::comm {

struct JobOptions {
  std::chrono::milliseconds join_timeout{300'000};        // until all ranks have come
  std::chrono::milliseconds collective_timeout{600'000};  // of one transfer between two ranks
  WatchOptions watch = {};
  // Network interface through which the others reach this rank (strata.comm.interface), also for NCCL unless
  // NCCL_SOCKET_IFNAME is set; empty: GLOO_SOCKET_IFNAME, else the address from which this machine reaches MASTER_ADDR.
  std::string interface = "";
};

// A GPU whose memory collectives on streams work on: then they are NCCL's.
struct NcclDevice {
  int device = 0;               // CUDA's number, of this process
  std::string plugin;           // the CUDA plug-in's file
  std::string pci_bus_id = "";  // no other rank may have the same; empty: unknown
};

// Memory that communicator() takes per communicator, of the host or of a GPU; none for a single rank.
std::size_t communicator_staging_bytes(std::size_t ranks);
std::size_t device_staging_bytes(std::size_t ranks);

class Job {
 public:
  // Returns once all ranks of the job have come. Throws: CommError that says which have not, which came twice, or what
  // is wrong with the address, the port, or the interface.
  static std::unique_ptr<Job> join(const RankInfo& info, const JobOptions& options = {});
  ~Job();

  std::size_t rank() const;
  std::size_t world() const;

  // Collectives among `ranks`, of which this rank is one; {} means all. All of them call it with the same list, in the
  // same order as their other calls, and with a `name` that is used once in the job. rank() in it is the place in the
  // list. `staging`: communicator_staging_bytes() where `math` works, or device_staging_bytes() on the device of
  // `nccl`; all ranks give as much. Both may be used until the communicator is destroyed. Connections stay open until
  // the job ends, lest a rank that drops a communicator looks like one that is lost. Throws: CommError.
  std::shared_ptr<Communicator> communicator(ShardMath& math, Buffer staging, const std::string& name = "all",
                                             std::vector<std::size_t> ranks = {},
                                             const std::optional<NcclDevice>& nccl = std::nullopt);

  // Notes that ranks leave each other in the store, outside of any collective and its time-out. Each key once. The
  // thread that joined. Requires: more than one rank. Throws: CommError.
  void publish(const std::string& key, const std::string& text);
  std::optional<std::string> look_up(const std::string& key);

  // The good end of this rank's work, which every rank calls before it leaves the watch, once its streams are past all
  // collectives: ends NCCL's groups. Without it, or after an abort, the destructor ends them by force. Throws:
  // CommError where a collective has failed on the GPU, or other ranks do not come.
  void shut_down();

  // Null in a job of one rank.
  RankWatch* watch();
  // This rank ends because of `error`. Returns what everybody should print: the reason of the job's first failure,
  // which is `error` itself where no other rank failed before. To be called before the job is destroyed.
  std::string report_failure(const std::exception& error, int exit_code);
  // Any thread: aborts all communicators that were made.
  void abort(const std::exception_ptr& reason);

 private:
  struct State;
  explicit Job(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace strata::comm
