// Collectives: which communicator an engine uses for what, and what each sends.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/block_codes.h"
#include "core/communicator.h"
#include "core/device.h"
#include "core/shard_optimizer.h"
#include "engine/engine_config.h"

namespace strata::engine {

// How the ranks of a run are arranged: `nodes` nodes of `per_node` ranks each, rank = node * per_node + place.
struct RankShape {
  std::size_t ranks = 1;
  std::size_t nodes = 1;
  std::size_t per_node = 1;
  SlowLinks links;
  bool within_node = false;  // EngineConfig::shard_within_node

  // Ranks among which the model is divided, and copies of it.
  std::size_t shards() const { return within_node ? per_node : ranks; }
  std::size_t replicas() const { return within_node ? nodes : 1; }
};

// Throws: ConfigError for what does not go together.
RankShape rank_shape(const EngineConfig& config);

// Bytes that one rank sends: among all ranks, inside its node, and to the ranks in the same place of other nodes.
struct SentBytes {
  std::uint64_t all = 0;
  std::uint64_t node = 0;
  std::uint64_t across = 0;
  SentBytes& operator+=(const SentBytes& more);
  SentBytes operator-(const SentBytes& less) const { return {all - less.all, node - less.node, across - less.across}; }
  SentBytes operator*(std::uint64_t times) const { return {all * times, node * times, across * times}; }
  bool operator==(const SentBytes&) const = default;
  std::uint64_t total() const { return all + node + across; }
};

// Of `numel` elements in all. A gather of weights; one inside the node where that has a second partition; a sum of
// gradients, of which a row stays, or all (stage 0).
SentBytes sent_by_gather(const RankShape& shape, std::uint64_t numel, DType dtype);
SentBytes sent_by_node_gather(const RankShape& shape, std::uint64_t numel, DType dtype);
enum class Reduced : std::uint8_t { Row, Whole };
SentBytes sent_by_reduce(const RankShape& shape, std::uint64_t numel, DType dtype, Reduced reduced);

// Device memory that the collectives work through.
std::uint64_t collective_scratch_bytes(const RankShape& shape);

// Ends what is under way on all communicators of `config`, and all that comes: for a rank that cannot go on, while
// others wait for it.
void abort_communicators(const EngineConfig& config, const std::exception_ptr& reason);

// Owns what stands between the engine and the communicators of its configuration.
class Collectives {
 public:
  // `math` works on the device, for the stream of the collectives alone. Throws: OutOfBudget.
  Collectives(const EngineConfig& config, const RankShape& shape, Device& device, ShardMath& math);

  Communicator& all() { return *all_; }        // every rank of the run
  Communicator& shards() { return *shards_; }  // those among which the model is divided
  Communicator& weights() { return *weights_; }
  Communicator& gradients() { return *gradients_; }
  Communicator* node() { return node_; }  // with a second partition of parameters; else null
  // Which copy of the model this rank is of.
  std::size_t replica() const { return replica_; }
  SentBytes sent() const;
  double busy_seconds() const;

 private:
  template <typename T, typename... Args>
  Communicator& make(Args&&... args);
  std::span<std::byte> scratch(Device& device, std::uint64_t bytes);

  std::vector<Buffer> scratch_;
  std::vector<std::shared_ptr<Communicator>> given_;  // all, node, across
  std::vector<std::unique_ptr<Communicator>> made_;
  Communicator* all_;
  Communicator* shards_;
  Communicator* weights_;
  Communicator* gradients_;
  Communicator* node_ = nullptr;
  std::size_t replica_ = 0;
};

}  // namespace strata::engine
