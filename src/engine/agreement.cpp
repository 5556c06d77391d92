#include "engine/agreement.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/fnv.h"

namespace strata::engine {
namespace {

double hash_of_model(const zero::LayerCompute& compute) {
  Fnv1a hash;
  for (const zero::FlatLayout& layout : compute.layouts()) {
    hash.add(layout.world());
    for (const zero::ParamDecl& param : layout.group().params) {
      hash.add(param.name);
      for (const std::int64_t dimension : param.shape) hash.add(dimension);
      hash.add(param.decay);
    }
    hash.add(layout.group().trainable);
  }
  return hash.as_double();
}

double hash_of_settings(const EngineConfig& c) {
  Fnv1a hash;
  const auto all = [&hash](const auto&... values) { (hash.add(values), ...); };
  all(c.training, c.param_type, c.loss_chunk_tokens, c.micro_batches, c.accumulate_in_fp32, c.seed, c.random_weights);
  all(c.adamw.beta1, c.adamw.beta2, c.adamw.epsilon, c.adamw.weight_decay, c.adamw.max_grad_norm);
  all(c.optimizer.kind, c.optimizer.master, c.optimizer.moments);
  all(c.zero_stage, c.persistence_threshold, c.rank_independent_sums, c.overlap_update, c.delay_update);
  all(c.cuda_device.has_value(), c.loss_scale.has_value(), c.shard_within_node, c.slow_links.two_hops,
      c.slow_links.node_partition);
  all(c.slow_links.weights ? static_cast<int>(*c.slow_links.weights) : -1);
  all(c.slow_links.gradients ? static_cast<int>(*c.slow_links.gradients) : -1);
  return hash.as_double();
}

double hash_of_plan(const MemoryPlan& plan) {
  Fnv1a hash;
  hash.add(plan.ahead);
  hash.add(plan.accumulation);
  hash.add(plan.grad_type);
  hash.add(plan.held_layers);
  for (const zero::GroupDivision& group : plan.divisions) {
    hash.add(group.numel);
    hash.add(group.partition.param);
    hash.add(group.partition.grad);
    hash.add(group.partition.states);
    hash.add(group.adds_locally);
  }
  return hash.as_double();
}

}  // namespace

PerTier smallest_budgets(Communicator& comm, const PerTier& budgets) {
  std::vector<double> all(comm.world() * budgets.size());
  for (std::size_t t = 0; t < budgets.size(); ++t) {
    all[comm.rank() * budgets.size() + t] = static_cast<double>(budgets[t]);
  }
  comm.all_gather_values(all);
  PerTier least = budgets;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::uint64_t& budget = least[i % budgets.size()];
    budget = std::min(budget, static_cast<std::uint64_t>(all[i]));
  }
  return least;
}

void require_same_run(Communicator& comm, const EngineConfig& config, const zero::LayerCompute& compute,
                      const MemoryPlan& plan) {
  const std::vector<std::pair<const char*, double>> mine{{"the model's parameters", hash_of_model(compute)},
                                                         {"the settings", hash_of_settings(config)},
                                                         {"the memory plan", hash_of_plan(plan)}};
  const std::size_t n = mine.size();
  std::vector<double> all(comm.world() * n);
  for (std::size_t i = 0; i < n; ++i) all[comm.rank() * n + i] = mine[i].second;
  comm.all_gather_values(all);
  std::ostringstream out;
  for (std::size_t r = 1; r < comm.world(); ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      if (all[r * n + i] == all[i]) continue;
      out << (out.tellp() == 0 ? "" : "; ") << "rank " << r << " differs from rank 0 in " << mine[i].first;
    }
  }
  if (out.tellp() == 0) return;
  throw CommError("the ranks were not started with the same run: " + out.str() +
                  "; give all of them the same model and configuration");
}

}  // namespace strata::engine
