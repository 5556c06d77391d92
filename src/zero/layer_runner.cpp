#include "zero/layer_runner.h"

#include "core/error.h"

namespace strata::zero {

LayerRunner::LayerRunner(LayerCompute& compute, std::vector<ParamGroup>& groups, GradReducer& reducer, Streams streams,
                         GatherAhead ahead, BusyTimes& times, std::vector<bool> held, ReduceOrder order)
    : compute_(compute),
      groups_(groups),
      reducer_(reducer),
      streams_(streams),
      ahead_(ahead),
      times_(times),
      held_(std::move(held)),
      order_(order) {}

LossSum LayerRunner::train(const std::vector<Visit>& visits, std::span<const BatchView> micro_batches,
                           const StartUpdate& start_update) {
  run(visits, micro_batches, Pass::Train, start_update);
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

void LayerRunner::run(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass,
                      const StartUpdate& start_update) {
  total_loss_ = {};
  try {
    queue(visits, batches, pass, start_update);
  } catch (...) {
    // What is queued refers to `batches`: it must end before the caller's frame does.
    (void)streams_.compute.record().wait_noexcept();
    throw;
  }
  streams_.compute.record().wait();
}

void LayerRunner::queue(const std::vector<Visit>& visits, std::span<const BatchView> batches, Pass pass,
                        const StartUpdate& start_update) {
  std::vector<std::size_t> left(batches.size(), 0);  // visits of each micro-batch
  for (const Visit& visit : visits) ++left.at(visit.micro_batch);
  std::vector<bool> open(batches.size(), false);
  const UpdateTime time = start_update ? UpdateTime::DuringBackward : UpdateTime::AfterBackward;
  for (const Action& action :
       plan_actions(visits, ahead_, time, pass == Pass::Train ? held_ : std::vector<bool>{}, order_)) {
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
      case Action::Kind::Reduce:
        reduce(visits[action.index]);
        break;
      case Action::Kind::Update: {
        const Event updated = start_update(action.index, reducer_.complete(action.index));
        reducer_.in_use_until(action.index, updated);
        groups_[action.index].update_until(updated);
        break;
      }
      case Action::Kind::WaitForUpdate:
        groups_[action.index].wait_for_update();
        break;
      case Action::Kind::Run: {
        const std::size_t m = visits[action.index].micro_batch;
        if (!open[m]) begin(m, batches[m], pass);
        open[m] = true;
        run_visit(visits[action.index]);
        if (--left[m] == 0) end(m, pass);
        break;
      }
    }
  }
}

void LayerRunner::begin(std::size_t micro_batch, const BatchView& batch, Pass pass) {
  streams_.compute.launch([this, micro_batch, batch, pass] { compute_.begin(micro_batch, batch, pass); });
}

void LayerRunner::end(std::size_t micro_batch, Pass pass) {
  streams_.compute.launch([this, micro_batch, pass] {
    if (pass == Pass::Generate) {
      logits_.assign(compute_.logits(micro_batch).begin(), compute_.logits(micro_batch).end());
    } else {
      const LossSum loss = compute_.loss(micro_batch);
      total_loss_.loss_sum += loss.loss_sum;
      total_loss_.tokens += loss.tokens;
    }
    compute_.end(micro_batch);
  });
}

void LayerRunner::run_visit(const Visit& visit) {
  const std::size_t micro_batch = visit.micro_batch;
  const std::size_t layer = visit.layer;
  if (visit.direction == Direction::Forward) {
    launch_timed(streams_.compute, times_, Work::Forward, layer,
                 [this, micro_batch, layer] { compute_.forward(micro_batch, layer); });
    return;
  }
  leases_.clear();
  std::vector<std::byte*> grads;
  for (const std::size_t group : compute_.groups_of(layer)) {
    if (!groups_[group].layout().group().trainable) {
      grads.push_back(nullptr);
      continue;
    }
    leases_.push_back(reducer_.acquire(group));  // in the order of visit.grad_groups
    grads.push_back(leases_.back().data);
  }
  launch_timed(streams_.compute, times_, Work::Backward, layer,
               [this, micro_batch, layer, grads] { compute_.backward(micro_batch, layer, grads); });
}

void LayerRunner::reduce(const Visit& visit) {
  for (std::size_t i = 0; i < leases_.size(); ++i) reducer_.reduce(visit.grad_groups[i], leases_[i]);
}

}  // namespace strata::zero
