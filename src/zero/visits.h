// The order of a step as data: which layers run, which groups are gathered when, which pieces are touched.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/look_ahead.h"
#include "offload/schedule.h"
#include "zero/context.h"
#include "zero/layer_compute.h"
#include "zero/optimizer_pipeline.h"

namespace strata::zero {

enum class Direction : std::uint8_t { Forward, Backward };

// One run of one layer.
struct Visit {
  std::size_t micro_batch = 0;
  std::size_t layer = 0;
  Direction direction = Direction::Forward;
  std::vector<std::size_t> groups;       // whose parameters it needs unsharded
  std::vector<std::size_t> grad_groups;  // whose gradients it produces
};

// Which comes first when several micro-batches are added up. Horizontal: a micro-batch goes through all layers before
// the next one begins, so that activations of one exist at a time. Vertical: a layer is visited by all micro-batches
// before the next layer, so that its parameters are gathered twice a step however many there are.
enum class Accumulation : std::uint8_t { Horizontal, Vertical };

// Where backward ends: nothing below has a group that is trained. The last layer where none has.
std::size_t lowest_trained_layer(const LayerCompute& compute);

// Train: of each micro-batch, layers 0..L-2 forward, then L-1..lowest_trained_layer() backward (the last layer's one
// visit is forward and backward). Frozen groups have no gradient.
std::vector<Visit> train_visits(const LayerCompute& compute, std::size_t micro_batches,
                                Accumulation accumulation = Accumulation::Horizontal);
// Evaluate and generate: layers 0..L-1 forward.
std::vector<Visit> forward_visits(const LayerCompute& compute);

// One instruction of the layer runner.
struct Action {
  enum class Kind : std::uint8_t { Unshard, WaitForUnshard, Run, Reshard, Reduce, Update, WaitForUpdate };
  Kind kind = Kind::Run;
  std::size_t index = 0;  // group, or visit for Run and Reduce
};

// When a step's update runs: after its backward, in forward order; under the forward of the next step, in that order;
// or during its backward, each group's as soon as its gradient is complete.
enum class UpdateTime : std::uint8_t { AfterBackward, UnderForward, DuringBackward };

// How far gathers run ahead of compute: one visit, or none where device memory is short.
enum class GatherAhead : std::uint8_t { None, One };

// When the gradients of a visit are sent on: before or after the gathers that run ahead of compute. On several ranks
// both are collectives of one stream, where a reduction waits for its layer: gathers behind it would wait as well. On
// one rank nothing waits, and an update begins sooner.
enum class ReduceOrder : std::uint8_t { BeforeGathers, AfterGathers };
constexpr ReduceOrder reduce_order(std::size_t ranks) {
  return ranks == 1 ? ReduceOrder::BeforeGathers : ReduceOrder::AfterGathers;
}

// Updates during backward that a gather leaves behind it.
inline constexpr std::size_t kUpdatesBehind = 0;

// The groups of the last `layers` layers: those that backward needs soonest after forward.
std::vector<bool> last_groups(const LayerCompute& compute, std::size_t layers);

// A group stays unsharded between neighbouring visits that both need it, and one that is `held` (empty: none) from its
// first visit to its last, so that it is gathered once. With GatherAhead::One the groups of the next
// visit are unsharded right after a visit was queued. With UpdateTime::DuringBackward each group's update follows the
// last visit that needs it or contributes to its gradient, if any does, and a gather waits until no more than
// kUpdatesBehind updates are left: layers that run farther ahead only push out of memory what these are about to use.
// Otherwise there are no updates among the actions.
std::vector<Action> plan_actions(const std::vector<Visit>& visits, GatherAhead ahead,
                                 UpdateTime time = UpdateTime::AfterBackward, const std::vector<bool>& held = {},
                                 ReduceOrder order = ReduceOrder::BeforeGathers);

// Per visit, the groups that are unsharded while it runs.
std::vector<std::vector<std::size_t>> unsharded_groups(const std::vector<Visit>& visits, const std::vector<bool>& held);

// Contributions that each group's gradient gets from `visits`.
std::vector<std::size_t> count_contributions(const std::vector<Visit>& visits, std::size_t groups);
// How many of them come first, one right after the other, from one layer: what can be summed on the device before it
// travels without changing the order of the sum.
std::vector<std::size_t> leading_contributions(const std::vector<Visit>& visits, std::size_t groups);
// Whether vertical accumulation adds the same numbers in the same order as horizontal: false where several layers
// contribute to one group (tied embeddings) in several micro-batches.
bool same_sums_vertically(const LayerCompute& compute, std::size_t micro_batches);

// Pieces that the gathers of `actions` and the gradients of `visits` touch and those that the updates touch (null: no
// update, and no gradients), in the order in which runner, reducer and pipeline acquire them: the schedule of one step.
// Updates are a lane of their own where they run beside gathers: under the next forward each group's comes right before
// the first gather of that group, during backward where `actions` (of the same `time`) say. Pieces that need no page in
// host memory are left out.
std::vector<offload::ScheduledAccess> scheduled_accesses(const offload::ShardStore& store,
                                                         const std::vector<GroupShards>& shards,
                                                         const std::vector<Visit>& visits,
                                                         const std::vector<Action>& actions,
                                                         const std::vector<UpdateShards>* updates,
                                                         UpdateTime time = UpdateTime::AfterBackward);

// The lane of updates at that time.
offload::Lane update_lane(UpdateTime time);

// How long a step computes, as estimated or measured.
struct StepSeconds {
  std::vector<double> visits;             // of each Run
  double update_seconds_per_element = 0;  // of an update
};

// The same accesses with the computing that follows each: what offload::plan_look_ahead() takes.
std::vector<offload::TimedAccess> timed_accesses(const offload::ShardStore& store,
                                                 const std::vector<GroupShards>& shards,
                                                 const std::vector<Visit>& visits, const std::vector<Action>& actions,
                                                 const std::vector<UpdateShards>* updates, const StepSeconds& seconds,
                                                 UpdateTime time = UpdateTime::AfterBackward);

}  // namespace strata::zero
