#include "engine/collectives.h"

#include "comm/hierarchical_communicator.h"
#include "comm/quantized_communicator.h"
#include "comm/replicated_communicator.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/local_communicator.h"

namespace strata::engine {
namespace {

// Bytes of `numel` elements as they travel.
std::uint64_t coded(const std::optional<BlockCode>& code, std::uint64_t numel, DType dtype) {
  return code ? message_bytes(*code, numel) : numel * bytes_of(dtype);
}

void require(bool holds, const std::string& message) {
  if (!holds) throw ConfigError(message);
}

comm::QuantizedOptions weight_options(const SlowLinks& links) {
  return {links.weights, {}};
}
comm::QuantizedOptions gradient_options(const SlowLinks& links) {
  return {{}, links.gradients};
}

}  // namespace

RankShape rank_shape(const EngineConfig& config) {
  RankShape shape;
  shape.ranks = config.comm ? config.comm->world() : 1;
  shape.per_node = config.node_comm ? config.node_comm->world() : 1;
  shape.nodes = config.across_comm ? config.across_comm->world() : shape.ranks;
  shape.links = config.slow_links;
  shape.within_node = config.shard_within_node;
  const SlowLinks& links = config.slow_links;
  const bool nodes = links.two_hops || links.node_partition || shape.within_node;
  if (shape.ranks == 1) {
    // Nobody to send to: everything is as without.
    shape.links = {};
    shape.within_node = false;
    return shape;
  }
  require(!nodes || (config.node_comm && config.across_comm && shape.per_node > 1 &&
                     shape.nodes * shape.per_node == shape.ranks),
          "strata.slow_links.two_hops, strata.slow_links.node_partition and strata.shard_within_node need nodes of two "
          "ranks or more, all of the same size: set strata.ranks_per_node");
  require(!shape.within_node || (!links.two_hops && !links.node_partition),
          "strata.shard_within_node: true gathers inside a node anyway: leave strata.slow_links.two_hops and "
          "strata.slow_links.node_partition off");
  require(links.weights != BlockCode::Int4, "strata.slow_links.weights takes none or int8; int4 is for gradients");
  require(
      !links.weights || config.zero_stage == 3,
      "strata.slow_links.weights: int8 needs strata.zero_stage: 3, where what is gathered is a copy of the weights");
  require(
      !links.weights || config.persistence_threshold == 0,
      "strata.slow_links.weights: int8 rounds what it gathers, and strata.persistence_threshold keeps weights whole "
      "where they are gathered: set it to 0");
  require(!links.node_partition || config.zero_stage == 3,
          "strata.slow_links.node_partition: true needs strata.zero_stage: 3; other stages keep the whole parameters");
  require(
      !config.rank_independent_sums || (!links.gradients && !links.two_hops && !shape.within_node),
      "strata.rank_independent_sums: true adds in the order of the global batch, which coded gradients, two hops and "
      "strata.shard_within_node do not: leave one of them off");
  return shape;
}

SentBytes& SentBytes::operator+=(const SentBytes& more) {
  all += more.all;
  node += more.node;
  across += more.across;
  return *this;
}

SentBytes sent_by_gather(const RankShape& shape, std::uint64_t numel, DType dtype) {
  const std::uint64_t row = coded(shape.links.weights, numel / shape.shards(), dtype);
  if (shape.within_node) return {0, (shape.per_node - 1) * row, 0};
  if (!shape.links.two_hops) return {(shape.ranks - 1) * row, 0, 0};
  return {0, (shape.per_node - 1) * shape.nodes * row, (shape.nodes - 1) * row};
}

SentBytes sent_by_node_gather(const RankShape& shape, std::uint64_t numel, DType dtype) {
  return {0, (shape.per_node - 1) * (numel / shape.per_node) * bytes_of(dtype), 0};
}

SentBytes sent_by_reduce(const RankShape& shape, std::uint64_t numel, DType dtype, Reduced reduced) {
  const std::optional<BlockCode>& code = shape.links.gradients;
  const std::uint64_t elements = numel / shape.shards();
  const std::uint64_t row = coded(code, elements, dtype);
  SentBytes sent;
  if (shape.within_node) {
    sent.node = (shape.per_node - 1) * row;
    const std::uint64_t part = elements / shape.nodes;
    sent.across = (shape.nodes - 1) * (coded(code, part, dtype) + part * bytes_of(dtype));
  } else if (shape.links.two_hops) {
    sent = {0, (shape.per_node - 1) * shape.nodes * row, (shape.nodes - 1) * row};
  } else {
    sent.all = (shape.ranks - 1) * row;
  }
  if (reduced == Reduced::Whole) {
    RankShape plain = shape;
    plain.links.weights.reset();
    sent += sent_by_gather(plain, numel, dtype);
  }
  return sent;
}

std::uint64_t collective_scratch_bytes(const RankShape& shape) {
  std::uint64_t bytes = 0;
  const auto add = [&](std::size_t world, const comm::QuantizedOptions& options) {
    if (options.weights || options.gradients) {
      bytes += align_up(comm::quantized_scratch_bytes(world, options), kPageBytes);
    }
  };
  for (const comm::QuantizedOptions& options : {weight_options(shape.links), gradient_options(shape.links)}) {
    if (shape.within_node || shape.links.two_hops) {
      add(shape.per_node, options);
      if (shape.links.two_hops || options.gradients) add(shape.nodes, options);
    } else {
      add(shape.ranks, options);
    }
    if (shape.links.two_hops) {
      bytes += align_up(comm::hierarchical_scratch_bytes(shape.nodes, shape.per_node), kPageBytes);
    }
  }
  return bytes;
}

Collectives::Collectives(const EngineConfig& config, const RankShape& shape, Device& device, ShardMath& math)
    : given_{config.comm ? config.comm : std::make_shared<LocalCommunicator>(), config.node_comm, config.across_comm} {
  Communicator* const node = given_[1].get();
  Communicator* const across = given_[2].get();
  all_ = given_[0].get();
  shards_ = shape.within_node ? node : all_;
  if (shape.within_node) replica_ = across->rank();
  if (shape.links.node_partition) node_ = node;
  const auto coding = [&](Communicator& base, const comm::QuantizedOptions& options) -> Communicator& {
    if (!options.weights && !options.gradients) return base;
    return make<comm::QuantizedCommunicator>(base, options, math,
                                             scratch(device, comm::quantized_scratch_bytes(base.world(), options)));
  };
  const auto path = [&](const comm::QuantizedOptions& options) -> Communicator& {
    if (!shape.links.two_hops) return coding(*shards_, options);
    Communicator& intra = coding(*node, options);
    Communicator& inter = coding(*across, options);
    return make<comm::HierarchicalCommunicator>(
        intra, inter, *all_, scratch(device, comm::hierarchical_scratch_bytes(shape.nodes, shape.per_node)));
  };
  weights_ = &path(weight_options(shape.links));
  gradients_ = &path(gradient_options(shape.links));
  if (shape.within_node) {
    gradients_ = &make<comm::ReplicatedCommunicator>(*gradients_, coding(*across, gradient_options(shape.links)));
  }
}

template <typename T, typename... Args>
Communicator& Collectives::make(Args&&... args) {
  made_.push_back(std::make_unique<T>(std::forward<Args>(args)...));
  return *made_.back();
}

std::span<std::byte> Collectives::scratch(Device& device, std::uint64_t bytes) {
  return scratch_.emplace_back(device.allocate(align_up(bytes, kPageBytes), MemoryTag::Staging)).span();
}

SentBytes Collectives::sent() const {
  const auto bytes = [](const std::shared_ptr<Communicator>& comm) { return comm ? comm->stats().bytes_sent : 0; };
  return {bytes(given_[0]), bytes(given_[1]), bytes(given_[2])};
}

double Collectives::busy_seconds() const {
  double seconds = 0;
  for (const auto& comm : given_) seconds += comm ? comm->stats().busy_seconds : 0;
  return seconds;
}

void abort_communicators(const EngineConfig& config, const std::exception_ptr& reason) {
  for (const auto& comm : {config.comm, config.node_comm, config.across_comm}) {
    if (comm) comm->abort(reason);
  }
}

}  // namespace strata::engine
