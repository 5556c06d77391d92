#include "comm/c10d_meeting.h"

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

void throw_if_missing(c10d::Store& store, const Meeting& meeting) {
  std::string list;
  for (std::size_t place = 0; place < meeting.ranks.size(); ++place) {
    if (!store.check({key(place)})) list.append(list.empty() ? "" : ", ").append(std::to_string(meeting.ranks[place]));
  }
  if (list.empty()) return;  // just now
  throw CommError("rank " + std::to_string(meeting.ranks.at(meeting.place)) + " has waited " +
                  seconds_text(meeting.timeout) + " for these ranks to " + meeting.what + ": " + list +
                  ". They are stopped, busy, or have ended; see what they printed");
}

std::vector<std::string> wait_for_others(c10d::Store& store, const Meeting& meeting, const std::string& text) {
  store.set(key(meeting.place), text);
  const auto until = std::chrono::steady_clock::now() + meeting.timeout;
  std::vector<std::string> said;
  while (said.size() < meeting.ranks.size()) {
    if (store.check({key(said.size())})) {
      said.push_back(store.get_to_str(key(said.size())));
      continue;
    }
    if (meeting.failure) {
      if (const auto reason = meeting.failure()) throw CommError(*reason);
    }
    if (std::chrono::steady_clock::now() >= until) throw_if_missing(store, meeting);
    std::this_thread::sleep_for(kPause);
  }
  return said;
}

}  // namespace

std::vector<std::string> meet(c10d::Store& store, const Meeting& meeting, const std::string& text) {
  try {
    return wait_for_others(store, meeting, text);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& e) {
    throw CommError("the job's store is lost: " + brief(e.what()));
  }
}

}  // namespace strata::comm
