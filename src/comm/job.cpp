#include "comm/job.h"

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "comm/c10d_communicator.h"
#include "comm/c10d_device_group.h"
#include "comm/c10d_log.h"
#include "comm/c10d_meeting.h"
#include "comm/c10d_text.h"
#include "comm/connection_lost.h"
#include "comm/endpoint.h"
#include "comm/failure_record.h"
#include "comm/gloo_backend.h"
#include "comm/nccl_backend.h"
#include "comm/store_server.h"
#include "core/error.h"
#include "core/local_communicator.h"

namespace strata::comm {
namespace {

using std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

// For the rank that closed a connection to say why.
constexpr std::chrono::milliseconds kCausePatience{3000};

std::string name_of_rank(const RankInfo& info) {
  return "rank " + std::to_string(info.rank) + " of " + std::to_string(info.world);
}

// What a process writes about itself.
struct Introduction {
  std::size_t world = 0;
  std::string id;   // unlike any other, where process numbers and host names of containers are equal
  std::string who;  // "process 4711 on node3"

  static Introduction of(const RankInfo& info) {
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    std::random_device random;
    return {info.world, std::to_string(random()) + std::to_string(random()),
            "process " + std::to_string(getpid()) + " on " + host};
  }
  static Introduction parse(const std::string& text) {
    const std::size_t first = text.find(' ');
    const std::size_t second = text.find(' ', first + 1);
    return {std::stoull(text), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
  }
  std::string text() const { return std::to_string(world) + " " + id + " " + who; }
};

Store connect(const RankInfo& info, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = info.master_port;
  options.waitWorkers = false;
  options.timeout = timeout;
  const Store store = c10::make_intrusive<c10d::TCPStore>(info.master_addr, options);
  return c10::make_intrusive<c10d::PrefixStore>(info.store_prefix, store);
}

void take_place(const RankInfo& info, c10d::Store& store) {
  const Introduction me = Introduction::of(info);
  const auto holder =
      Introduction::parse(store.compareSet("rank/" + std::to_string(info.rank), std::string(), me.text()));
  if (holder.id == me.id) return;
  throw CommError("two processes are " + name_of_rank(info) + ": " + holder.who + " and " + me.who +
                  ". Give each its own RANK");
}

void wait_for_all(const RankInfo& info, c10d::Store& store, FailureRecord& record, std::chrono::milliseconds timeout) {
  const auto until = steady_clock::now() + timeout;
  std::set<std::size_t> missing;
  for (std::size_t r = 0; r < info.world; ++r) missing.insert(r);
  while (!missing.empty()) {
    const std::string key = "rank/" + std::to_string(*missing.begin());
    if (store.check({key})) {
      const auto other = Introduction::parse(store.get_to_str(key));
      if (other.world != info.world) {
        throw CommError("rank " + std::to_string(*missing.begin()) + " was started as one of " +
                        std::to_string(other.world) + " ranks, rank " + std::to_string(info.rank) + " as one of " +
                        std::to_string(info.world) + ". Give all the same WORLD_SIZE");
      }
      missing.erase(missing.begin());
      continue;
    }
    if (const auto failure = record.first()) throw CommError(failure->reason);
    if (steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others are processes that start
  }
  std::string list;
  for (const std::size_t r : missing) {
    if (!store.check({"rank/" + std::to_string(r)})) list += (list.empty() ? "" : ", ") + std::to_string(r);
  }
  if (list.empty()) return;
  throw CommError("these of " + std::to_string(info.world) + " ranks have not come to MASTER_ADDR=" + info.master_addr +
                  ", MASTER_PORT=" + std::to_string(info.master_port) + " within " +
                  std::to_string(timeout.count() / 1000) + " s: " + list +
                  ". See what they printed, or whether they were started");
}

// There is no watch yet that would tell the others, or a launcher, why this rank ends.
void wait_for_all_or_report(const RankInfo& info, c10d::Store& store, std::chrono::milliseconds timeout) {
  FailureRecord record({.host = info.master_addr, .port = info.master_port, .prefix = info.store_prefix});
  try {
    wait_for_all(info, store, record, timeout);
  } catch (const CommError& error) {
    record.report({6, "rank " + std::to_string(info.rank) + " failed first: " + error.what()});
    // Who serves the store stays until those that wait have read it.
    if (info.rank == 0 && !info.agent_store) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw;
  }
}

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
  std::vector<std::pair<Store, Meeting>> ends;  // where the ranks of each meet for the last time
  std::unique_ptr<RankWatch> watch;             // ends before the connections do

  std::mutex mutex;
  std::set<std::string> names;                             // guarded by mutex
  std::vector<std::weak_ptr<Communicator>> communicators;  // guarded by mutex

  C10dGroups make_groups(const std::string& name, std::size_t place, const std::vector<std::size_t>& ranks,
                         const std::optional<NcclDevice>& nccl);
  Meeting meeting(const std::string& what, std::size_t place, const std::vector<std::size_t>& ranks,
                  std::chrono::milliseconds timeout);
};

Meeting Job::State::meeting(const std::string& what, std::size_t place, const std::vector<std::size_t>& ranks,
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
                                       .meeting = meeting("start NCCL", place, ranks, options.join_timeout)});
    ends.emplace_back(part("end"), meeting("end", place, ranks, options.collective_timeout));
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
  state->interface = options.interface;
  if (!options.interface.empty()) {
    require_interface(options.interface, "strata.comm.interface");
    // NCCL finds one by itself, as Gloo does; "=" makes it the name and not a prefix. What the user has set stays.
    setenv("NCCL_SOCKET_IFNAME", ("=" + options.interface).c_str(), 0);
  } else if (const char* const variable = std::getenv("GLOO_SOCKET_IFNAME"); variable != nullptr && *variable != '\0') {
    require_interface(state->interface = variable, "GLOO_SOCKET_IFNAME");
  }
  if (info.master_port == 0) throw CommError("MASTER_PORT is not set: the ranks need one port on which they meet");
  const bool serves = info.rank == 0 && !info.agent_store;
  if (serves) state->server = std::make_unique<StoreServer>(info.master_addr, info.master_port);
  state->address = wait_for_listener(info.master_addr, info.master_port, options.join_timeout);
  try {
    state->store = connect(info, options.join_timeout);
    take_place(info, *state->store);
    wait_for_all_or_report(info, *state->store, options.join_timeout);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    throw CommError(name_of_rank(info) + " lost the job's store at MASTER_ADDR=" + info.master_addr +
                    ", MASTER_PORT=" + std::to_string(info.master_port) + " while joining: " + brief(e.what()));
  }
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
void Job::finish() {
  state_->devices->require_sound();
  // Whoever is here waits in NCCL for those that are not, where no abort would reach.
  for (const auto& [store, meeting] : state_->ends) meet(*store, meeting);
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
  std::shared_ptr<Communicator> made;
  if (ranks.size() == 1) {
    made = std::make_shared<LocalCommunicator>();
  } else {
    C10dGroups groups = state_->make_groups(name, static_cast<std::size_t>(mine - ranks.begin()), ranks, nccl);
    made = make_c10d_communicator(std::move(groups), math, std::move(staging));
  }
  const std::lock_guard lock(state_->mutex);
  state_->communicators.push_back(made);
  return made;
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
  const std::lock_guard lock(state_->mutex);
  for (const std::weak_ptr<Communicator>& weak : state_->communicators) {
    if (const auto communicator = weak.lock()) communicator->abort(reason);
  }
}

}  // namespace strata::comm
