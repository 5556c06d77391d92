// OptimizerPipeline: pages states through the update, in forward order, while the store reads ahead and writes back
// behind.
#pragma once

#include <functional>
#include <vector>

#include "zero/busy_times.h"
#include "zero/context.h"
#include "zero/flat_layout.h"

namespace strata::zero {

// Where an update runs: where the states are at home, so that the larger bytes do not travel.
enum class UpdateSite : std::uint8_t { Host, Device };

// The shards of one group that an update touches, in the order in which their pieces are acquired.
struct UpdateShards {
  offload::ShardId param;
  offload::Access param_access = offload::Access::Write;  // fp32 parameters are the master: ReadWrite
  offload::ShardId grad;
  std::vector<offload::ShardId> states;
  std::vector<std::size_t> elements_per_value{};  // of each state: StateSpec; empty: 1 of all

  // Elements of the parameter that share one value of a position's shard.
  std::size_t per_value(std::size_t position) const {
    return position < kFirstState || elements_per_value.empty() ? 1 : elements_per_value[position - kFirstState];
  }

  // Positions in that order: 0 parameter, 1 gradient, 2.. states.
  static constexpr std::size_t kParam = 0;
  static constexpr std::size_t kGrad = 1;
  static constexpr std::size_t kFirstState = 2;
  offload::ShardId shard(std::size_t position) const {
    return position == kParam ? param : position == kGrad ? grad : states[position - kFirstState];
  }
  std::size_t count() const { return kFirstState + states.size(); }
  offload::Access access(std::size_t position) const {
    if (position == kParam) return param_access;
    return position == kGrad ? offload::Access::Read : offload::Access::ReadWrite;
  }
};

// Calls on_chunk(first, numel) for runs of elements that lie within one piece of every shard, and before it
// on_piece(position, piece) whenever a shard enters a new piece.
// The pipeline and the schedule use this one walk, so they cannot disagree.
void walk_update(const offload::ShardStore& store, const UpdateShards& shards,
                 const std::function<void(std::size_t, offload::PieceId)>& on_piece,
                 const std::function<void(std::uint64_t, std::uint64_t)>& on_chunk);

// Updates run on `updates`, one after the other, so that the next forward may begin while later groups still wait for
// their states. The update of a chunk runs there (host site) or on `stream` (device site), which nobody else may use
// meanwhile.
class OptimizerPipeline {
 public:
  // `device_staging`: two device slots of the store's slot size for chunks whose gradient or parameter is not at home
  // on the device while its states are; null when that cannot happen. `lane`: of the schedule, for the update's
  // accesses. References must outlive the pipeline.
  OptimizerPipeline(std::vector<const FlatLayout*> layouts, std::vector<UpdateShards> shards, UpdateSite site,
                    offload::ShardStore& store, ShardOptimizer& host_optimizer, ShardOptimizer& device_optimizer,
                    const Buffer* device_staging, std::size_t rank, Stream& stream, Executor& updates,
                    LinkCounters& counters, BusyTimes& times, offload::Lane lane = offload::Lane::Gathers);

  // Starts updating every group, in forward order. Event g completes when group g's new parameter and states are the
  // latest versions (writes to drives may still run), or fails with the first failure of any group so far. Gradients
  // must not change and the store must live until then. Requires: the events of the step before are complete.
  std::vector<Event> start(const StepContext& context);
  // Starts updating one group once `gradient` is complete; groups are updated in the order of these calls. As start()
  // otherwise; a failure is for good.
  Event start(std::size_t group, const StepContext& context, const Event& gradient);
  // Of the last start() of a group: each completes when that piece of its parameter has its new value, or fails as the
  // group's event does.
  const std::vector<Event>& updated_pieces(std::size_t group) const { return updated_pieces_[group]; }
  // start(), and waits for all of it. Throws: the first failure.
  void step(const StepContext& context);

 private:
  // The pieces of one parameter, which complete in their order.
  class Pieces {
   public:
    explicit Pieces(std::uint32_t numel);
    std::vector<Event> events() const;
    void complete_before(std::uint32_t piece);
    void complete_all();
    void fail(const std::exception_ptr& error);

   private:
    std::vector<EventSource> sources_;
    std::size_t complete_ = 0;
  };
  void update(std::size_t group, const StepContext& context, Pieces& pieces);
  std::vector<Segment> segments_of(std::size_t group, std::uint64_t first, std::uint64_t numel) const;
  std::uint64_t element_index(std::size_t group, std::uint64_t first) const;
  void step_on_host(std::size_t group, const StepContext& context, Pieces& pieces);
  void step_on_device(std::size_t group, const StepContext& context, Pieces& pieces);
  void update_on_device(std::size_t group, const StepContext& context, std::vector<TensorSpan>& on_device,
                        std::vector<TensorSpan>& on_host, std::size_t numel, std::uint64_t first);

  const std::vector<const FlatLayout*> layouts_;
  const std::vector<UpdateShards> shards_;
  const UpdateSite site_;
  offload::ShardStore& store_;
  ShardOptimizer& host_optimizer_;
  ShardOptimizer& device_optimizer_;
  const Buffer* device_staging_;
  const std::size_t rank_;
  Stream& stream_;
  Executor& updates_;
  LinkCounters& counters_;
  BusyTimes& times_;
  const offload::Lane lane_;
  std::vector<std::vector<Event>> updated_pieces_;  // of each group
  std::exception_ptr failure_;                      // the first one; of the thread of `updates_`
};

}  // namespace strata::zero
