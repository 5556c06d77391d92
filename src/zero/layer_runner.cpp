#include "zero/layer_runner.h"

#include "core/error.h"

namespace strata::zero {
namespace {}  // namespace

LayerRunner::LayerRunner(LayerCompute& compute, std::vector<ParamGroup>& groups, GradReducer& reducer, Streams streams,
                         GatherAhead ahead, BusyTimes& times)
    : compute_(compute), groups_(groups), reducer_(reducer), streams_(streams), ahead_(ahead), times_(times) {}

LossSum LayerRunner::train(std::span<const BatchView> micro_batches) {
  run(train_visits(compute_, micro_batches.size()), micro_batches, Pass::Train);
  reducer_.finish();
  return total_loss_;
}

LossSum LayerRunner::evaluate(const BatchView& batch) {
  run(forward_visits(compute_), {&batch, 1}, Pass::Evaluate);
  return total_loss_;
}

std::vector<float> LayerRunner::generate(const BatchView& batch) {
  run(forward_visits(compute_), {&batch, 1}, Pass::Generate);
  return std::move(logits_);
}

void LayerRunner::run(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass) {
  total_loss_ = {};
  try {
    queue(visits, batches, pass);
  } catch (...) {
    // What is queued refers to `batches`: it must end before the caller's frame does.
    (void)streams_.compute.record().wait_noexcept();
    throw;
  }
  streams_.compute.record().wait();
}

void LayerRunner::queue(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass) {
  for (const Action& action : plan_actions(visits, ahead_)) {
    switch (action.kind) {
      case Action::Kind::Unshard:
        groups_[action.index].unshard();
        break;
      case Action::Kind::WaitForUnshard:
        groups_[action.index].wait_for_unshard();
        break;
      case Action::Kind::Reshard:
        groups_[action.index].reshard();
        break;
      case Action::Kind::Run: {
        const std::size_t v = action.index;
        const std::size_t m = visits[v].micro_batch;
        if (v == 0 || visits[v - 1].micro_batch != m) {
          streams_.compute.launch([this, batch = batches[m], pass] { compute_.begin(batch, pass); });
        }
        run_visit(visits[v]);
        if (v + 1 == visits.size() || visits[v + 1].micro_batch != m) {
          streams_.compute.launch([this, pass] {
            if (pass == Pass::Generate) {
              logits_.assign(compute_.logits().begin(), compute_.logits().end());
            } else {
              total_loss_.loss_sum += compute_.loss().loss_sum;
              total_loss_.tokens += compute_.loss().tokens;
            }
            compute_.end();
          });
        }
        break;
      }
    }
  }
}

void LayerRunner::run_visit(const Visit& visit) {
  const std::size_t layer = visit.layer;
  if (visit.direction == Direction::Forward) {
    streams_.compute.launch([this, layer] {
      const Stopwatch watch(times_, Work::Forward, layer);
      compute_.forward(layer);
    });
    return;
  }
  std::vector<DeviceSlots::Lease> leases;
  std::vector<std::byte*> grads;
  for (const std::size_t group : visit.grad_groups) {
    leases.push_back(reducer_.acquire(group));
    grads.push_back(leases.back().data);
  }
  streams_.compute.launch([this, layer, grads] {
    const Stopwatch watch(times_, Work::Backward, layer);
    compute_.backward(layer, grads);
  });
  for (std::size_t i = 0; i < leases.size(); ++i) reducer_.reduce(visit.grad_groups[i], leases[i]);
}

}  // namespace strata::zero
