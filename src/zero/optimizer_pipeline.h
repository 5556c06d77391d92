// OptimizerPipeline: pages states through the update, in forward order, while the store reads ahead and writes back
// behind.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "zero/busy_times.h"
#include "zero/context.h"
#include "zero/device_updates.h"
#include "zero/flat_layout.h"
#include "zero/update_parts.h"
#include "zero/update_sites.h"

namespace strata::zero {

// The shards of one group that an update touches, in the order in which their pieces are acquired.
struct UpdateShards {
  offload::ShardId param;
  offload::Access param_access = offload::Access::Write;  // fp32 parameters are the master: ReadWrite
  offload::ShardId grad;
  std::vector<offload::ShardId> states;
  std::vector<std::size_t> elements_per_value{};  // of each state: StateSpec; empty: 1 of all
  std::vector<UpdateSite> sites{};                // of each piece of the parameter; empty: the host, for all
  std::uint64_t first = 0;                        // where the parameter begins in the flat layout
  bool frozen = false;                            // no update: there are no other shards than the parameter

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
  UpdateSite site(offload::PieceId piece_of_param) const {
    return sites.empty() ? UpdateSite::Host : sites[piece_of_param.piece];
  }
};

// The shards in the order of their positions.
std::vector<UpdatePart> update_parts(const offload::ShardStore& store, const UpdateShards& shards);
// What there is to choose: its units are the pieces of the parameter. Where the states are at home on the device, or
// the group is frozen, nothing.
UpdateWork update_work(const offload::ShardStore& store, const UpdateShards& shards);
// Whether the update acquires `piece` of the shard at `position`: not what is at home on the device, where no chunk
// of it is updated on the host.
bool update_acquires(const offload::ShardStore& store, const UpdateShards& shards, std::size_t position,
                     offload::PieceId piece);

// Calls on_chunk(first, numel) for runs of elements that lie within one piece of every shard, and before it
// on_piece(position, piece) whenever a shard enters a new piece. Nothing where the group is frozen.
// The pipeline and the schedule use this one walk, so they cannot disagree.
void walk_update(const offload::ShardStore& store, const UpdateShards& shards,
                 const std::function<void(std::size_t, offload::PieceId)>& on_piece,
                 const std::function<void(std::uint64_t, std::uint64_t)>& on_chunk);

// Updates run on `updates`, one after the other, so that the next forward may begin while later groups still wait for
// their states. A chunk on the host site is updated there; one on the device site is queued there for the device's
// streams, and `updates` goes on, so that both work at the same time.
class OptimizerPipeline {
 public:
  // `device`: null where no chunk is updated there; only this pipeline calls it, and `host_optimizer` runs at the same
  // time as its optimizer. `lane`: of the schedule, for the update's accesses. References must outlive the pipeline.
  OptimizerPipeline(std::vector<const FlatLayout*> layouts, std::vector<UpdateShards> shards,
                    offload::ShardStore& store, ShardOptimizer& host_optimizer, DeviceUpdates* device,
                    Executor& updates, BusyTimes& times, offload::Lane lane = offload::Lane::Gathers);

  // Starts updating every group, in forward order. Event g completes when group g's new parameter and states are the
  // latest versions (writes to drives may still run), or fails with the first failure of any group so far. Gradients
  // must not change and the store must live until then. That of a frozen group is complete. Requires: the events of the
  // step before are complete.
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
  // The pieces of one parameter, which get their new values in order.
  class Pieces {
   public:
    explicit Pieces(std::uint32_t numel);
    std::vector<Event> events() const;
    // Those before `piece` that are left complete when `until` does.
    static void end_before(const std::shared_ptr<Pieces>& pieces, std::uint32_t piece, const Event& until);
    void fail(const std::exception_ptr& error);

   private:
    std::vector<EventSource> sources_;
    std::size_t ended_ = 0;  // of the thread of `updates_`
  };
  // A page of a walk; it is let go when what was started on it has ended.
  struct Page {
    offload::Pin pin;
    std::uint64_t first = 0;  // its first value in the shard
    Event used_until;
    void let_go();
  };
  // Ends when the host's part is done; the event completes when the device's is, that of earlier groups included.
  Event update(std::size_t group, const StepContext& context, const std::shared_ptr<Pieces>& updated);
  void update_on_host(std::size_t group, const StepContext& context, const std::vector<Page>& pages,
                      std::uint64_t first, std::uint64_t numel);
  void update_on_device(std::size_t group, const StepContext& context, std::vector<Page>& pages, std::uint64_t first,
                        std::uint64_t numel);
  TensorSpan in_page(const UpdateShards& shards, std::size_t position, const Page& page, std::uint64_t first,
                     std::uint64_t numel) const;
  std::vector<Segment> segments_of(std::size_t group, std::uint64_t first, std::uint64_t numel) const;
  std::uint64_t element_index(std::size_t group, std::uint64_t first) const;

  const std::vector<const FlatLayout*> layouts_;
  const std::vector<UpdateShards> shards_;
  offload::ShardStore& store_;
  ShardOptimizer& host_optimizer_;
  DeviceUpdates* const device_;
  Executor& updates_;
  BusyTimes& times_;
  const offload::Lane lane_;
  std::vector<std::vector<Event>> updated_pieces_;  // of each group
  Event last_on_device_;                            // of the thread of `updates_`, as the next one
  std::exception_ptr failure_;                      // the first one
};

}  // namespace strata::zero
