// Ranks that wait for each other through the job's store, before what no time-out and no abort could end.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace strata::comm {

struct Rendezvous {
  std::string what;  // "start NCCL", for messages
  std::size_t place = 0;
  std::vector<std::size_t> ranks = {};  // rank in the job of each place
  std::chrono::milliseconds timeout{};
  std::function<std::optional<std::string>()> failure = {};  // why the job has failed elsewhere, once it has
};

// Tells the others `text` and returns what each says, by place, once all have come. One rendezvous per store. Throws:
// CommError that names who has not come, or says why another rank or the store has failed.
std::vector<std::string> meet(c10d::Store& store, const Rendezvous& rendezvous, const std::string& text = "");

}  // namespace strata::comm
