#include "zero/visits.h"

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "zero/grad_homes.h"

namespace strata::zero {
namespace {

bool contains(const std::vector<std::size_t>& values, std::size_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Per visit: the groups whose last visit it is, of those that get a gradient.
std::vector<std::vector<std::size_t>> finished_groups(const std::vector<Visit>& visits) {
  std::vector<std::vector<std::size_t>> finished(visits.size());
  std::vector<std::size_t> trained;
  for (const Visit& visit : visits) {
    trained.insert(trained.end(), visit.grad_groups.begin(), visit.grad_groups.end());
  }
  std::vector<std::size_t> seen;  // in a later visit
  for (std::size_t v = visits.size(); v-- > 0;) {
    for (const std::vector<std::size_t>* groups : {&visits[v].grad_groups, &visits[v].groups}) {
      for (const std::size_t group : *groups) {
        if (contains(seen, group) || !contains(trained, group)) continue;
        seen.push_back(group);
        finished[v].push_back(group);
      }
    }
  }
  return finished;
}

std::vector<std::size_t> trained_groups(const LayerCompute& compute, std::size_t layer) {
  std::vector<std::size_t> groups = compute.groups_of(layer);
  std::erase_if(groups, [&](std::size_t group) { return !compute.layouts()[group].group().trainable; });
  return groups;
}

}  // namespace

std::vector<bool> last_groups(const LayerCompute& compute, std::size_t layers) {
  std::vector<bool> last(compute.layouts().size(), false);
  for (std::size_t i = 0; i < std::min(layers, compute.layers()); ++i) {
    for (const std::size_t group : compute.groups_of(compute.layers() - 1 - i)) last[group] = true;
  }
  return last;
}

std::vector<std::vector<std::size_t>> unsharded_groups(const std::vector<Visit>& visits,
                                                       const std::vector<bool>& held) {
  std::vector<std::vector<std::size_t>> unsharded;
  for (const Visit& visit : visits) unsharded.push_back(visit.groups);
  for (std::size_t group = 0; group < held.size(); ++group) {
    if (!held[group]) continue;
    const auto needs = [group](const std::vector<std::size_t>& groups) { return contains(groups, group); };
    const auto first = std::find_if(unsharded.begin(), unsharded.end(), needs);
    const auto last = std::find_if(unsharded.rbegin(), unsharded.rend(), needs).base();
    for (auto visit = first; visit < last; ++visit) {
      if (!contains(*visit, group)) visit->push_back(group);
    }
  }
  return unsharded;
}

std::size_t lowest_trained_layer(const LayerCompute& compute) {
  std::size_t layer = 0;
  while (layer + 1 < compute.layers() && trained_groups(compute, layer).empty()) ++layer;
  return layer;
}

std::vector<Visit> train_visits(const LayerCompute& compute, std::size_t micro_batches, Accumulation accumulation) {
  std::vector<Visit> visits;
  const std::size_t last = compute.layers() - 1;
  const std::size_t lowest = lowest_trained_layer(compute);
  // Micro-batches that go through the layers together.
  const std::size_t together = accumulation == Accumulation::Vertical ? micro_batches : 1;
  for (std::size_t first = 0; first < micro_batches; first += together) {
    for (std::size_t layer = 0; layer < last; ++layer) {
      for (std::size_t m = first; m < first + together; ++m) {
        visits.push_back({m, layer, Direction::Forward, compute.groups_of(layer), {}});
      }
    }
    for (std::size_t layer = last + 1; layer-- > lowest;) {
      const std::vector<std::size_t>& groups = compute.groups_of(layer);
      const std::vector<std::size_t> trained = trained_groups(compute, layer);
      const bool needs_params = compute.backward_needs_params(layer);
      for (std::size_t m = first; m < first + together; ++m) {
        visits.push_back({m, layer, Direction::Backward, needs_params ? groups : std::vector<std::size_t>{}, trained});
      }
    }
  }
  return visits;
}

std::vector<Visit> forward_visits(const LayerCompute& compute) {
  std::vector<Visit> visits;
  for (std::size_t layer = 0; layer < compute.layers(); ++layer) {
    visits.push_back({0, layer, Direction::Forward, compute.groups_of(layer), {}});
  }
  return visits;
}

std::vector<Action> plan_actions(const std::vector<Visit>& visits, GatherAhead ahead, UpdateTime time,
                                 const std::vector<bool>& held, ReduceOrder order) {
  std::vector<Action> actions;
  std::vector<std::size_t> last_visit(held.size(), 0);  // of each group that needs it
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const std::size_t group : visits[v].groups) {
      if (group < held.size()) last_visit[group] = v;
    }
  }
  const auto stays = [&](std::size_t group, std::size_t v, const std::vector<std::size_t>& next) {
    return contains(next, group) || (group < held.size() && held[group] && last_visit[group] > v);
  };
  std::vector<std::vector<std::size_t>> updated(visits.size());  // after each visit
  if (time == UpdateTime::DuringBackward) updated = finished_groups(visits);
  std::vector<std::size_t> unsharded;  // or on the way
  std::deque<std::size_t> updates;     // that nothing waits for yet
  const auto unshard_all = [&](const std::vector<std::size_t>& groups) {
    for (const std::size_t group : groups) {
      if (contains(unsharded, group)) continue;
      for (; updates.size() > kUpdatesBehind; updates.pop_front()) {
        actions.push_back({Action::Kind::WaitForUpdate, updates.front()});
      }
      unsharded.push_back(group);
      actions.push_back({Action::Kind::Unshard, group});
    }
  };
  std::vector<std::size_t> bound;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    unshard_all(visits[v].groups);
    for (const std::size_t group : visits[v].groups) {
      if (contains(bound, group)) continue;
      bound.push_back(group);
      actions.push_back({Action::Kind::WaitForUnshard, group});
    }
    actions.push_back({Action::Kind::Run, v});
    const bool reduces = !visits[v].grad_groups.empty();
    if (reduces && order == ReduceOrder::BeforeGathers) actions.push_back({Action::Kind::Reduce, v});
    const std::vector<std::size_t> none;
    const std::vector<std::size_t>& next = v + 1 < visits.size() ? visits[v + 1].groups : none;
    for (const std::size_t group : visits[v].groups) {
      if (stays(group, v, next)) continue;
      actions.push_back({Action::Kind::Reshard, group});
      std::erase(bound, group);
      std::erase(unsharded, group);
    }
    if (ahead == GatherAhead::One) unshard_all(next);
    if (reduces && order == ReduceOrder::AfterGathers) actions.push_back({Action::Kind::Reduce, v});
    for (const std::size_t group : updated[v]) {
      actions.push_back({Action::Kind::Update, group});
      updates.push_back(group);
    }
  }
  return actions;
}

std::vector<std::size_t> count_contributions(const std::vector<Visit>& visits, std::size_t groups) {
  std::vector<std::size_t> counts(groups, 0);
  for (const Visit& visit : visits) {
    for (const std::size_t group : visit.grad_groups) ++counts[group];
  }
  return counts;
}

std::vector<std::size_t> leading_contributions(const std::vector<Visit>& visits, std::size_t groups) {
  std::vector<std::size_t> counts(groups, 0);
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const std::size_t group : visits[v].grad_groups) {
      if (counts[group] > 0) continue;
      for (std::size_t next = v;
           next < visits.size() && visits[next].layer == visits[v].layer && contains(visits[next].grad_groups, group);
           ++next) {
        ++counts[group];
      }
    }
  }
  return counts;
}

bool same_sums_vertically(const LayerCompute& compute, std::size_t micro_batches) {
  if (micro_batches < 2) return true;
  const std::vector<std::size_t> named = count_contributions(train_visits(compute, 1), compute.layouts().size());
  return std::all_of(named.begin(), named.end(), [](std::size_t layers) { return layers <= 1; });
}

offload::Lane update_lane(UpdateTime time) {
  switch (time) {
    case UpdateTime::AfterBackward:
      return offload::Lane::Gathers;
    case UpdateTime::UnderForward:
      return offload::Lane::Updates;
    case UpdateTime::DuringBackward:
      return offload::Lane::EarlyUpdates;
  }
  return offload::Lane::Gathers;
}

std::vector<offload::ScheduledAccess> scheduled_accesses(const offload::ShardStore& store,
                                                         const std::vector<GroupShards>& shards,
                                                         const std::vector<Visit>& visits,
                                                         const std::vector<Action>& actions,
                                                         const std::vector<UpdateShards>* updates, UpdateTime time) {
  std::vector<offload::ScheduledAccess> accesses;
  for (const offload::TimedAccess& access : timed_accesses(store, shards, visits, actions, updates, {}, time)) {
    accesses.push_back({access.piece, access.access, access.lane});
  }
  return accesses;
}

std::vector<offload::TimedAccess> timed_accesses(const offload::ShardStore& store,
                                                 const std::vector<GroupShards>& shards,
                                                 const std::vector<Visit>& visits, const std::vector<Action>& actions,
                                                 const std::vector<UpdateShards>* updates, const StepSeconds& seconds,
                                                 UpdateTime time) {
  std::vector<offload::TimedAccess> accesses;
  const offload::Lane lane = update_lane(time);
  struct Computing {
    double duration;
    offload::Lane lane;
  };
  std::vector<Computing> before_the_first;
  const auto add_computing = [&](const Computing& computing) {
    offload::TimedAccess& last = accesses.back();
    (last.lane == computing.lane ? last.seconds : last.beside_seconds) += computing.duration;
  };
  const auto compute = [&](double duration, offload::Lane by) {
    accesses.empty() ? before_the_first.push_back({duration, by}) : add_computing({duration, by});
  };
  const auto add = [&](offload::PieceId piece, offload::Access access, offload::Lane by) {
    const std::uint64_t bytes = store.range(piece).numel * bytes_of(store.spec(piece.shard).dtype);
    accesses.push_back({.piece = piece, .access = access, .lane = by, .bytes = bytes});
  };
  const auto add_update = [&](const UpdateShards& update) {
    const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
      if (!store.paged(piece) || !update_acquires(store, update, position, piece)) return;
      add(piece, update.access(position), lane);
    };
    walk_update(store, update, on_piece, [&](std::uint64_t, std::uint64_t numel) {
      compute(static_cast<double>(numel) * seconds.update_seconds_per_element, lane);
    });
  };
  std::vector<std::vector<GradArrival>> arrivals(visits.size());
  if (updates != nullptr) arrivals = grad_arrivals(visits, shards.size());
  std::vector<std::size_t> to_come(shards.size(), 0);
  for (const std::vector<GradArrival>& after_visit : arrivals) {
    for (const GradArrival& arrival : after_visit) ++to_come[arrival.group];
  }
  const auto add_gradients = [&](const std::vector<GradArrival>& after_visit) {
    for (auto [group, access] : after_visit) {
      --to_come[group];
      // What a rank adds by itself needs no page; the sum over the ranks follows the last of it.
      if (shards[group].local_grad) {
        if (to_come[group] > 0) continue;
        access = offload::Access::Write;
      }
      const offload::ShardId grad = shards[group].grad;
      if (store.device_address(grad) != nullptr) continue;
      for (std::uint32_t p = 0; p < store.pieces(grad); ++p) {
        if (store.paged({grad, p})) add({grad, p}, access, offload::Lane::Gathers);
      }
    }
  };
  std::size_t updated = 0;  // groups whose update has been added, where updates go in the order of the groups
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::Run) {
      STRATA_EXPECTS(action.index < visits.size(), "these are not the actions of these visits");
      if (action.index < seconds.visits.size()) compute(seconds.visits[action.index], offload::Lane::Gathers);
    }
    if (action.kind == Action::Kind::Reduce) add_gradients(arrivals[action.index]);
    if (action.kind == Action::Kind::Update && updates != nullptr) add_update((*updates)[action.index]);
    if (action.kind != Action::Kind::Unshard) continue;
    // The pipeline updates the groups in their order, which is that of their first gathers.
    while (updates != nullptr && time == UpdateTime::UnderForward && updated <= action.index) {
      add_update((*updates)[updated++]);
    }
    const offload::ShardId param = shards[action.index].param;
    if (store.device_address(param) != nullptr) continue;
    for (std::uint32_t p = 0; p < store.pieces(param); ++p) {
      if (store.paged({param, p})) add({param, p}, offload::Access::Read, offload::Lane::Gathers);
    }
  }
  if (updates != nullptr && time != UpdateTime::DuringBackward) {
    for (; updated < updates->size(); ++updated) add_update((*updates)[updated]);
  }
  // A step repeats: what it computes before its first access follows the last one.
  if (!accesses.empty()) std::for_each(before_the_first.begin(), before_the_first.end(), add_computing);
  return accesses;
}

}  // namespace strata::zero
