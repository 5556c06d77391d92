// SimulatedActors: threads that share a simulated clock. One runs at a time, so everything is deterministic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "support/simulated_drive.h"

namespace strata::test {

// An actor runs until it waits; then the first in order whose wait is over goes on, and time passes only when there is
// none. Whoever is not run by run() is alone and makes time pass itself.
class SimulatedActors {
 public:
  explicit SimulatedActors(SimulatedDrive& drive) : drive_(drive) {}

  // Runs them to their ends; one alone on this very thread. Throws: what the first one to fail threw.
  void run(std::vector<std::function<void()>> functions) {
    STRATA_EXPECTS(actors_.empty(), "actors within actors");
    if (functions.size() == 1) {
      functions.front()();
      return;
    }
    for (std::function<void()>& function : functions) {
      actors_.push_back(std::make_unique<Actor>());
      actors_.back()->thread =
          std::jthread([this, actor = actors_.back().get(), run = std::move(function)] { run_actor(*actor, run); });
    }
    hand_over(next_actor());
    all_done_.acquire();
    actors_.clear();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  void wait_until(const std::function<bool()>& over) {
    note_change();
    wait(over, kNever);
  }
  void sleep_until(double time) {
    note_change();
    wait([this, time] { return drive_.now() >= time; }, time);
  }
  // For ShardStore's on_blocked: returns when time has passed or another actor has noted a change.
  void wait_for_change() {
    const std::uint64_t seen = changes_;
    wait([this, seen] { return changes_ != seen; }, kNever);
  }
  // Before a call of the store that may block: what this actor did until now may be what another one waits for. Every
  // other wait notes it by itself.
  void note_change() { ++changes_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Actor {
    std::binary_semaphore go{0};
    std::function<bool()> over;  // of its wait; null: it may run
    double wakes_at = kNever;
    bool done = false;
    std::jthread thread;
  };

  void run_actor(Actor& actor, const std::function<void()>& function) {
    actor.go.acquire();
    try {
      if (!failure_) function();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    actor.done = true;
    note_change();
    hand_over(next_actor());
  }

  void hand_over(Actor* next) {
    current_ = next;
    next != nullptr ? next->go.release() : all_done_.release();
  }

  void wait(const std::function<bool()>& over, double wakes_at) {
    Actor* const self = current_;
    if (self == nullptr) {
      while (!over()) pass_time(wakes_at);
      return;
    }
    self->over = over;
    self->wakes_at = wakes_at;
    if (Actor* const next = next_actor(); next != self) {
      hand_over(next);
      self->go.acquire();
    }
    self->over = nullptr;
    if (failure_) throw Cancelled("another actor failed");
  }

  // Null when all are done. What time brings may fail as well; then everybody ends.
  Actor* next_actor() {
    for (;;) {
      double wakes_at = kNever;
      bool all_done = true;
      for (const std::unique_ptr<Actor>& actor : actors_) {
        if (actor->done) continue;
        all_done = false;
        if (failure_ || !actor->over || actor->over()) return actor.get();
        wakes_at = std::min(wakes_at, actor->wakes_at);
      }
      if (all_done) return nullptr;
      try {
        pass_time(wakes_at);
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
  }

  void pass_time(double at_most_until) {
    note_change();
    if (drive_.next_event() <= at_most_until) {
      drive_.advance();
    } else {
      drive_.advance_to(at_most_until);
    }
  }

  SimulatedDrive& drive_;
  std::vector<std::unique_ptr<Actor>> actors_;
  Actor* current_ = nullptr;  // null: nobody that run() runs
  std::binary_semaphore all_done_{0};
  std::uint64_t changes_ = 0;
  std::exception_ptr failure_;
};

}  // namespace strata::test
