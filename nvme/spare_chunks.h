// Places that chunks may move to.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/budget.h"
#include "nvme/placement.h"

namespace strata::nvme {

// Exchanges the place of a chunk for one on another path. Places are made ready, and those that chunks left are given
// back, by a thread of its own, because both may wait for the I/O that is in flight (see SwapFile). Every place, ready
// or left, holds its own share of the budget until its space is given back: so the budget is never exceeded, and
// nothing moves when it has no room for one more chunk. Thread-safe; exchange() never blocks on I/O.
class SpareChunks {
 public:
  // How many calls a path is left alone after its file system or the budget had no room.
  static constexpr unsigned kRest = 256;

  // Every place is `bytes` long. Files and budget must outlive stop(). With one file there is nothing to do.
  SpareChunks(std::vector<SwapFile*> files, std::uint64_t bytes, Budget& budget);
  ~SpareChunks() { stop(); }
  SpareChunks(const SpareChunks&) = delete;
  SpareChunks& operator=(const SpareChunks&) = delete;

  // A place on `path` that is the caller's from now on, while `left` no longer is. Nothing: none is ready, `left` is
  // still the caller's, and one will be made ready if there is room for it.
  // Requires: no I/O on `left` is in flight, nor will be.
  std::optional<Place> exchange(Place left, std::size_t path);

  // Ends the thread. exchange() may still be called, but makes nothing ready.
  void stop();

 private:
  struct Owned {
    Place place;
    Reservation reservation;
  };
  struct Path {
    SwapFile* file = nullptr;
    std::vector<Owned> ready;
    bool wanted = false;
    unsigned rest = 0;
  };

  void run();
  void give_back(Owned left);
  void make_ready(std::size_t path);
  Path* wanted_path();

  const std::uint64_t bytes_;
  Budget& budget_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Path> paths_;  // guarded by mutex_, but for `file`
  std::vector<Owned> left_;  // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::thread thread_;
};

}  // namespace strata::nvme
