#include "comm/rank_watch.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/c10d_text.h"
#include "comm/watch_keys.h"
#include "core/error.h"

namespace strata::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using std::chrono_literals::operator""ms;

constexpr milliseconds kStorePatience = 3000ms;  // of a caller with a store that does not answer
constexpr milliseconds kLinger = 2000ms;  // of the process that serves the store, until others have read the failure
constexpr milliseconds kHurry = 50ms;     // between looks while somebody waits

// Values of a rank's key; a number is a heartbeat.
constexpr const char* kLeft = "left";    // done
constexpr const char* kHeard = "heard";  // knows of the failure

std::string text_of_bytes(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

struct Peer {
  std::string value;
  steady_clock::time_point changed;
  bool gone() const { return value == kLeft || value == kHeard; }
};

}  // namespace

struct RankWatch::State {
  State(StoreAddress address, std::size_t index, std::size_t n, WatchOptions watch_options)
      : store(std::move(address)), rank(index), world(n), options(watch_options), peers(n) {
    started = answered = steady_clock::now();
    for (Peer& peer : peers) peer.changed = started;
  }

  const StoreAddress store;
  const std::size_t rank;
  const std::size_t world;
  const WatchOptions options;

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::vector<Peer> peers;
  steady_clock::time_point started, answered;  // the store's last answer
  std::string store_error;                     // the connection to it is gone
  std::optional<std::string> report;           // to be written as the first failure
  bool report_done = false;
  std::optional<std::string> failure;  // as it stands in the store: exit code, space, reason
  std::string mark;                    // kLeft or kHeard instead of heartbeats, once it is one
  bool mark_written = false;
  int hurried = 0;  // callers who wait
  bool told = false;
  bool stopping = false;
  bool talker_ended = false;
  std::function<void(const std::string&)> on_lost;
  std::thread talker, watcher;

  std::string reason() const { return failure->substr(failure->find(' ') + 1); }
  bool store_lost() const { return !store_error.empty(); }
  bool store_silent(steady_clock::time_point now) const { return now - answered > options.lost_after; }
  bool all_others_gone() const {
    for (std::size_t r = 0; r < world; ++r) {
      if (r != rank && !peers[r].gone()) return false;
    }
    return true;
  }
  template <typename Done>
  void wait_hurried(std::unique_lock<std::mutex>& lock, milliseconds patience, Done done) {
    ++hurried;
    changed.notify_all();
    changed.wait_for(lock, patience, done);
    --hurried;
  }
  // Where this process serves the store it must not end before the others have read why.
  void linger(std::unique_lock<std::mutex>& lock) {
    if (store.serves) wait_hurried(lock, kLinger, [this] { return all_others_gone() || talker_ended; });
  }
  // This rank's failure, or what it found out about another.
  void write_failure(std::unique_lock<std::mutex>& lock, int exit_code, const std::string& reason_text) {
    if (!report) report = std::to_string(exit_code) + " " + reason_text;
    if (!store_silent(steady_clock::now())) {
      wait_hurried(lock, kStorePatience, [this] { return report_done || failure || talker_ended; });
    }
    if (!failure) failure = report;  // the store does not answer: the first reason that is known here
    changed.notify_all();
  }

  void talk();
  void exchange(c10d::Store& client, std::unique_lock<std::mutex>& lock);
  void watch();
  std::optional<std::string> suspicion(steady_clock::time_point now) const;
};

// The talker's round: its own news first, then those of the others.
void RankWatch::State::exchange(c10d::Store& client, std::unique_lock<std::mutex>& lock) {
  const std::string base = store.prefix + "/watch/";
  const auto key = [&](std::size_t r) { return base + std::to_string(r); };
  const std::optional<std::string> to_report = report_done ? std::nullopt : report;
  const std::string to_mark = mark_written ? "" : mark;
  const bool beats = mark.empty();
  lock.unlock();

  if (to_report) client.compareSet(failure_key(store.prefix), std::string(kNoFailure), *to_report);
  if (!to_mark.empty()) client.set(key(rank), to_mark);
  if (beats) client.add(key(rank), 1);
  std::vector<std::string> keys = {failure_key(store.prefix)};
  for (std::size_t r = 0; r < world; ++r) keys.push_back(key(r));
  const std::vector<std::vector<std::uint8_t>> values = client.multiGet(keys);

  lock.lock();
  answered = steady_clock::now();
  report_done = report_done || to_report.has_value();
  mark_written = mark_written || !to_mark.empty();
  if (const std::string text = text_of_bytes(values[0]); text != kNoFailure && !failure) failure = text;
  if (failure && mark.empty()) mark = kHeard;
  for (std::size_t r = 0; r < world; ++r) {
    std::string value = text_of_bytes(values[r + 1]);
    if (value == peers[r].value) continue;
    peers[r] = {std::move(value), answered};
  }
  changed.notify_all();
}

void RankWatch::State::talk() {
  std::unique_lock lock(mutex, std::defer_lock);
  try {
    c10d::TCPStoreOptions client_options;
    client_options.port = store.port;
    client_options.waitWorkers = false;
    client_options.timeout = options.lost_after;
    c10d::TCPStore client(store.host, client_options);
    // A get of a key that is not there would wait for it. These make keys and leave those alone that are there.
    c10d::Store& keys = client;
    keys.compareSet(failure_key(store.prefix), std::string(), std::string(kNoFailure));
    for (std::size_t r = 0; r < world; ++r) {
      keys.compareSet(store.prefix + "/watch/" + std::to_string(r), std::string(), std::string("0"));
    }
    lock.lock();
    for (;;) {
      exchange(client, lock);
      const auto urgent = [this] { return (report && !report_done) || (!mark.empty() && !mark_written); };
      if (urgent()) continue;
      // Who has left or heard has nothing more to learn, and must not be talking when the store ends.
      if (stopping || (mark_written && !store.serves)) break;
      const auto pause = hurried > 0 ? kHurry : options.heartbeat_interval;
      const auto before = hurried;
      changed.wait_for(lock, pause, [&] { return stopping || urgent() || hurried > before; });
    }
  } catch (const std::exception& e) {
    if (!lock.owns_lock()) lock.lock();
    store_error = brief(e.what());
  }
  talker_ended = true;
  changed.notify_all();
}

// What is wrong as far as this rank can see.
std::optional<std::string> RankWatch::State::suspicion(steady_clock::time_point now) const {
  const std::string at = " the job's store at " + store.host + ":" + std::to_string(store.port);
  if (store_lost()) return store.server + ", which serves" + at + ", has ended (" + store_error + ")";
  if (store_silent(now)) {
    return store.server + ", which serves" + at + ", has not answered for " + seconds_text(options.lost_after) +
           " (stopped, or its machine is gone)";
  }
  for (std::size_t r = 0; r < world; ++r) {
    if (r == rank || peers[r].gone() || now - peers[r].changed <= options.lost_after) continue;
    return "rank " + std::to_string(r) + " has not answered for " + seconds_text(options.lost_after) +
           " (stopped, or its machine is gone)";
  }
  return std::nullopt;
}

void RankWatch::State::watch() {
  std::unique_lock lock(mutex);
  const auto pause = std::max<milliseconds>(options.heartbeat_interval / 4, 1ms);
  auto last_look = steady_clock::now();
  while (!stopping) {
    changed.wait_for(lock, pause, [this] { return stopping || (failure && !told && on_lost) || store_lost(); });
    if (stopping) return;
    const auto now = steady_clock::now();
    // This process itself was stopped for a while: what it remembers of the others says nothing about them.
    if (now - last_look > options.lost_after / 2) {
      answered = now;
      for (Peer& peer : peers) peer.changed = now;
    }
    last_look = now;
    // Who serves the store stays until the others have left, and looks after them so long.
    if (!failure && (mark != kLeft || store.serves)) {
      if (const auto reason_text = suspicion(now)) write_failure(lock, 6, *reason_text);
    }
    if (failure && !told && on_lost) {
      told = true;
      linger(lock);
      const auto fn = on_lost;
      const std::string text = reason();
      lock.unlock();
      fn(text);
      lock.lock();
    }
    // Nothing more to find out; on_lost() or the destructor wakes this thread.
    if (store_lost() || (failure && told)) {
      changed.wait(lock, [this] { return stopping || (failure && !told && on_lost); });
    }
  }
}

RankWatch::RankWatch(const StoreAddress& store, std::size_t rank, std::size_t world, WatchOptions options)
    : state_(std::make_shared<State>(store, rank, world, options)) {
  STRATA_EXPECTS(rank < world, "one of the ranks");
  state_->talker = std::thread([state = state_] { state->talk(); });
  state_->watcher = std::thread([state = state_.get()] { state->watch(); });
}

RankWatch::~RankWatch() {
  std::unique_lock lock(state_->mutex);
  if (state_->mark.empty() && !state_->failure && !state_->talker_ended) {
    state_->told = true;
    state_->write_failure(lock, 6, "rank " + std::to_string(state_->rank) + " ended early");
    state_->linger(lock);
  }
  state_->stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kStorePatience, [this] { return state_->talker_ended; });
  const bool ended = state_->talker_ended;
  lock.unlock();
  state_->watcher.join();
  // A call to a store whose process is stopped never returns. The thread owns what it touches.
  ended ? state_->talker.join() : state_->talker.detach();
}

void RankWatch::on_lost(std::function<void(const std::string&)> fn) {
  const std::lock_guard lock(state_->mutex);
  state_->on_lost = std::move(fn);
  state_->changed.notify_all();
}

std::string RankWatch::report_failure(const std::string& reason, int exit_code) {
  std::unique_lock lock(state_->mutex);
  state_->told = true;
  if (!state_->failure) {
    state_->write_failure(lock, exit_code, "rank " + std::to_string(state_->rank) + " failed first: " + reason);
  }
  state_->linger(lock);
  return state_->reason();
}

std::optional<std::string> RankWatch::first_failure(milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  const auto is_known = [this] { return state_->failure.has_value(); };
  if (patience > 0ms) state_->wait_hurried(lock, patience, is_known);
  if (!state_->failure) return std::nullopt;
  state_->linger(lock);
  return state_->reason();
}

std::optional<int> RankWatch::first_exit_code() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->failure) return std::nullopt;
  return std::stoi(*state_->failure);
}

void RankWatch::leave() {
  std::unique_lock lock(state_->mutex);
  if (state_->mark.empty()) state_->mark = kLeft;
  state_->wait_hurried(lock, kStorePatience, [this] { return state_->mark_written || state_->talker_ended; });
  if (!state_->store.serves) return;
  const auto done = [this] { return state_->all_others_gone() || state_->failure || state_->talker_ended; };
  while (!done()) state_->wait_hurried(lock, state_->options.heartbeat_interval, done);
}

}  // namespace strata::comm
