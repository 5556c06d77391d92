#include "comm/c10d_rendezvous.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <thread>

#include "comm/c10d_text.h"
#include "core/error.h"

namespace strata::comm {
namespace {

constexpr std::chrono::milliseconds kPause{20};  // between looks into the store: the others are processes

std::string key(std::size_t place) {
  return "met/" + std::to_string(place);
}

void throw_if_missing(c10d::Store& store, const Rendezvous& rendezvous) {
  std::string list;
  for (std::size_t place = 0; place < rendezvous.ranks.size(); ++place) {
    if (!store.check({key(place)}))
      list.append(list.empty() ? "" : ", ").append(std::to_string(rendezvous.ranks[place]));
  }
  if (list.empty()) return;  // just now
  throw CommError("rank " + std::to_string(rendezvous.ranks.at(rendezvous.place)) + " has waited " +
                  seconds_text(rendezvous.timeout) + " for these ranks to " + rendezvous.what + ": " + list +
                  ". They are stopped, busy, or have ended; see what they printed");
}

std::vector<std::string> wait_for_others(c10d::Store& store, const Rendezvous& rendezvous, const std::string& text) {
  store.set(key(rendezvous.place), text);
  const auto until = std::chrono::steady_clock::now() + rendezvous.timeout;
  std::vector<std::string> said;
  while (said.size() < rendezvous.ranks.size()) {
    if (store.check({key(said.size())})) {
      said.push_back(store.get_to_str(key(said.size())));
      continue;
    }
    if (rendezvous.failure) {
      if (const auto reason = rendezvous.failure()) throw CommError(*reason);
    }
    if (std::chrono::steady_clock::now() >= until) throw_if_missing(store, rendezvous);
    std::this_thread::sleep_for(kPause);
  }
  return said;
}

}  // namespace

std::vector<std::string> meet(c10d::Store& store, const Rendezvous& rendezvous, const std::string& text) {
  try {
    return wait_for_others(store, rendezvous, text);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    throw CommError("the job's store is lost: " + brief(e.what()));
  }
}

}  // namespace strata::comm
