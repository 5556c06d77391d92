#include "comm/c10d_join.h"

#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <random>
#include <set>
#include <string>
#include <thread>

#include "comm/c10d_text.h"
#include "comm/failure_record.h"
#include "core/error.h"

namespace strata::comm {
namespace {

using std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

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

Store join_store(const RankInfo& info, std::chrono::milliseconds timeout) {
  try {
    Store store = connect(info, timeout);
    take_place(info, *store);
    wait_for_all_or_report(info, *store, timeout);
    return store;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    throw CommError(name_of_rank(info) + " lost the job's store at MASTER_ADDR=" + info.master_addr +
                    ", MASTER_PORT=" + std::to_string(info.master_port) + " while joining: " + brief(e.what()));
  }
}

}  // namespace strata::comm
