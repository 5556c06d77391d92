// LayerRunner: drives parameter groups and layers through the visits of a step.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "zero/busy_times.h"
#include "zero/grad_reducer.h"
#include "zero/param_group.h"
#include "zero/visits.h"

namespace strata::zero {

// Caller thread only: it queues; compute runs on the compute stream. References must outlive the runner. `held`: groups
// that training gathers once a step (plan_actions()).
class LayerRunner {
 public:
  LayerRunner(LayerCompute& compute, std::vector<ParamGroup>& groups, GradReducer& reducer, Streams streams,
              GatherAhead ahead, BusyTimes& times, std::vector<bool> held = {},
              ReduceOrder order = ReduceOrder::BeforeGathers);

  // Starts the update of a group whose gradient is complete with the event; the result completes with the update.
  using StartUpdate = std::function<Event(std::size_t group, const Event& gradient)>;

  // Forward and backward of every micro-batch in the order of `visits` (train_visits() of as many micro-batches);
  // gradients are at home when this returns (GradReducer::finish). Throws: the first failure of anything queued.
  // With `start_update` every group's update is started as soon as its gradient is on its way, in the order of backward
  // (UpdateTime::DuringBackward); its next unshard waits for it.
  LossSum train(const std::vector<Visit>& visits, std::span<const BatchView> micro_batches,
                const StartUpdate& start_update = {});
  LossSum evaluate(const BatchView& batch);
  // Logits of the last position of each sequence, [B, V].
  std::vector<float> generate(const BatchView& batch);

 private:
  void run(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass,
           const StartUpdate& start_update = {});
  void queue(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass,
             const StartUpdate& start_update);
  void run_visit(const Visit& visit);
  void reduce(const Visit& visit);
  void begin(std::size_t micro_batch, const BatchView& batch, Pass pass);
  void end(std::size_t micro_batch, Pass pass);

  LayerCompute& compute_;
  std::vector<ParamGroup>& groups_;
  GradReducer& reducer_;
  Streams streams_;
  GatherAhead ahead_;
  BusyTimes& times_;
  const std::vector<bool> held_;
  const ReduceOrder order_;
  std::vector<DeviceSlots::Lease> leases_;  // of the gradients of the visit that ran last
  LossSum total_loss_;                      // written on the compute stream, read after it was waited for
  std::vector<float> logits_;               // likewise
};

}  // namespace strata::zero
