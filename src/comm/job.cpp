#include "comm/job.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "comm/c10d_communicator.h"
#include "comm/c10d_device_group.h"
#include "comm/c10d_join.h"
#include "comm/c10d_log.h"
#include "comm/c10d_rendezvous.h"
#include "comm/c10d_text.h"
#include "comm/connection_lost.h"
#include "comm/endpoint.h"
#include "comm/gloo_backend.h"
#include "comm/nccl_backend.h"
#include "comm/store_server.h"
#include "core/error.h"
#include "core/local_communicator.h"

namespace strata::comm {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

// For the rank that closed a connection to say why.
constexpr std::chrono::milliseconds kCausePatience{3000};

// An abort uses a communicator without owning it: it must not be the last to do so, because what the communicator works
// with belongs to its user, who may go as soon as he has let go of it.
struct LivingCommunicators {
  std::mutex mutex;
  std::set<Communicator*> all;  // guarded by mutex

  static std::shared_ptr<Communicator> add(const std::shared_ptr<LivingCommunicators>& living,
                                           std::unique_ptr<Communicator> made) {
    const std::lock_guard lock(living->mutex);
    living->all.insert(made.get());
    return {made.release(), [living](Communicator* ended) {
              {
                const std::lock_guard ending(living->mutex);
                living->all.erase(ended);
              }
              delete ended;
            }};
  }
  void abort(const std::exception_ptr& reason) {
    const std::lock_guard lock(mutex);
    for (Communicator* communicator : all) communicator->abort(reason);
  }
};

}  // namespace

std::size_t communicator_staging_bytes(std::size_t ranks) {
  return ranks > 1 ? kStagingBytes : 0;
}
std::size_t device_staging_bytes(std::size_t ranks) {
  return ranks > 1 ? kDeviceStagingBytes : 0;
}

struct Job::State {
  RankInfo info;
  JobOptions options;
  std::string interface, address;
  std::unique_ptr<StoreServer> server;  // ends after all that talk to it
  Store store;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends;  // of all communicators; guarded by mutex
  const std::shared_ptr<DeviceGroups> devices = std::make_shared<DeviceGroups>();
  std::vector<std::pair<Store, Rendezvous>> ends;  // where the ranks of each meet for the last time
  std::unique_ptr<RankWatch> watch;                // ends before the connections do

  std::mutex mutex;
  std::set<std::string> names;  // guarded by mutex
  const std::shared_ptr<LivingCommunicators> communicators = std::make_shared<LivingCommunicators>();

  C10dGroups make_groups(const std::string& name, std::size_t place, const std::vector<std::size_t>& ranks,
                         const std::optional<NcclDevice>& nccl);
  Rendezvous rendezvous(const std::string& what, std::size_t place, const std::vector<std::size_t>& ranks,
                        std::chrono::milliseconds timeout);
};

Rendezvous Job::State::rendezvous(const std::string& what, std::size_t place, const std::vector<std::size_t>& ranks,
                                  std::chrono::milliseconds timeout) {
  return {what, place, ranks, timeout, [this] { return watch->first_failure(std::chrono::milliseconds(0)); }};
}

C10dGroups Job::State::make_groups(const std::string& name, std::size_t place, const std::vector<std::size_t>& ranks,
                                   const std::optional<NcclDevice>& nccl) {
  const auto part = [&](const char* channel) {
    return c10::make_intrusive<c10d::PrefixStore>("comm/" + name + "/" + channel, store);
  };
  const auto gloo = [&](const char* channel) {
    return make_gloo_backend(part(channel), place, ranks.size(),
                             {.interface = interface, .address = address, .timeout = options.join_timeout});
  };
  C10dGroups groups{
      .blocking = gloo("blocking"), .ranks = ranks, .timeout = options.collective_timeout, .devices = devices};
  if (nccl) {
    groups.queued = make_nccl_backend(part("queued"), place, ranks.size(),
                                      {.device = nccl->device,
                                       .timeout = options.collective_timeout,
                                       .plugin = nccl->plugin,
                                       .pci_bus_id = nccl->pci_bus_id,
                                       .rendezvous = rendezvous("start NCCL", place, ranks, options.join_timeout)});
    ends.emplace_back(part("end"), rendezvous("end", place, ranks, options.collective_timeout));
  } else {
    groups.queued = gloo("queued");
  }
  const std::lock_guard lock(mutex);
  backends.insert(backends.end(), {groups.queued, groups.blocking});
  return groups;
}

std::unique_ptr<Job> Job::join(const RankInfo& info, const JobOptions& options) {
  STRATA_EXPECTS(info.rank < info.world, "one of the ranks");
  auto state = std::make_unique<State>();
  state->info = info;
  state->options = options;
  if (info.world == 1) return std::unique_ptr<Job>(new Job(std::move(state)));

  quieten_c10d();
  const char* const variable = std::getenv("GLOO_SOCKET_IFNAME");
  const bool by_variable = options.interface.empty() && variable != nullptr && *variable != '\0';
  state->interface = by_variable ? variable : options.interface;
  if (!state->interface.empty()) {
    require_interface(state->interface, by_variable ? "GLOO_SOCKET_IFNAME" : "strata.comm.interface");
    // NCCL's as well, which looks for one by itself; "=" makes it the name and not a prefix. What the user has set
    // stays.
    setenv("NCCL_SOCKET_IFNAME", ("=" + state->interface).c_str(), 0);
  }
  if (info.master_port == 0) throw CommError("MASTER_PORT is not set: the ranks need one port on which they meet");
  const bool serves = info.rank == 0 && !info.agent_store;
  if (serves) state->server = std::make_unique<StoreServer>(info.master_addr, info.master_port);
  state->address = wait_for_listener(info.master_addr, info.master_port, options.join_timeout);
  state->store = join_store(info, options.join_timeout);
  const StoreAddress address{.host = info.master_addr,
                             .port = info.master_port,
                             .prefix = info.store_prefix,
                             .serves = serves,
                             .server = info.agent_store ? "the launcher" : "rank 0"};
  state->watch = std::make_unique<RankWatch>(address, info.rank, info.world, options.watch);
  return std::unique_ptr<Job>(new Job(std::move(state)));
}

Job::Job(std::unique_ptr<State> state) : state_(std::move(state)) {}
// Its threads may be inside on_lost(), which may abort communicators.
Job::~Job() {
  state_->watch.reset();
  state_->devices->abort(std::make_exception_ptr(CommError("the job has ended")));
}

std::size_t Job::rank() const {
  return state_->info.rank;
}
std::size_t Job::world() const {
  return state_->info.world;
}
void Job::publish(const std::string& key, const std::string& text) {
  try {
    state_->store->set("note/" + key, text);
  } catch (const std::exception& e) {
    throw CommError("the job's store is lost: " + brief(e.what()));
  }
}
std::optional<std::string> Job::look_up(const std::string& key) {
  try {
    if (!state_->store->check({"note/" + key})) return std::nullopt;
    return state_->store->get_to_str("note/" + key);
  } catch (const std::exception& e) {
    throw CommError("the job's store is lost: " + brief(e.what()));
  }
}
void Job::shut_down() {
  state_->devices->require_sound();
  // Whoever is here waits in NCCL for those that are not, where no abort would reach.
  for (const auto& [store, rendezvous] : state_->ends) meet(*store, rendezvous);
  state_->devices->shut_down();
}
RankWatch* Job::watch() {
  return state_->watch.get();
}

std::shared_ptr<Communicator> Job::communicator(ShardMath& math, Buffer staging, const std::string& name,
                                                std::vector<std::size_t> ranks, const std::optional<NcclDevice>& nccl) {
  if (ranks.empty()) {
    ranks.resize(world());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  STRATA_EXPECTS(mine != ranks.end() && *std::max_element(ranks.begin(), ranks.end()) < world(), "ranks of this job");
  STRATA_EXPECTS(std::set(ranks.begin(), ranks.end()).size() == ranks.size(), "each rank once");
  {
    const std::lock_guard lock(state_->mutex);
    STRATA_EXPECTS(state_->names.insert(name).second, "a name that was not used before: " + name);
  }
  if (ranks.size() == 1) return std::make_shared<LocalCommunicator>();
  C10dGroups groups = state_->make_groups(name, static_cast<std::size_t>(mine - ranks.begin()), ranks, nccl);
  return LivingCommunicators::add(state_->communicators,
                                  make_c10d_communicator(std::move(groups), math, std::move(staging)));
}

std::string Job::report_failure(const std::exception& error, int exit_code) {
  if (!state_->watch) return error.what();
  if (dynamic_cast<const ConnectionLost*>(&error) != nullptr) {
    const auto first = state_->watch->first_failure(kCausePatience);
    if (first) return *first;
  }
  return state_->watch->report_failure(error.what(), exit_code);
}

void Job::abort(const std::exception_ptr& reason) {
  state_->communicators->abort(reason);
  state_->devices->abort(reason);  // also of communicators that are gone
}

}  // namespace strata::comm
