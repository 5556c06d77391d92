// MemoryPlan: where every byte goes, decided before anything is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/shard_optimizer.h"
#include "engine/collectives.h"
#include "engine/shard_specs.h"
#include "engine/update_plan.h"
#include "offload/tier.h"
#include "zero/visits.h"

namespace strata::engine {

using PerTier = std::array<std::uint64_t, offload::kTiers>;  // indexed by TierKind

struct PlanRequest {
  const zero::LayerCompute* compute = nullptr;
  DType param_type = DType::BF16;
  bool training = true;           // false: no gradients and no optimizer states
  std::vector<StateSpec> states;  // of the optimizer for that type; sgd in fp32 has none
  zero::Division division;
  RankShape shape;
  std::uint64_t communicator_bytes = 0;  // of EngineConfig
  std::size_t micro_batches = 1;
  bool accumulate_in_fp32 = true;  // several micro-batches; false: in param_type
  bool early_updates = false;      // zero::UpdateTime::DuringBackward: gradients use few homes in turn
  // Absent: the plan chooses; never one that changes bits.
  std::optional<zero::Accumulation> accumulation;
  std::uint64_t activation_bytes = 0;        // upper bound of torch's tensors, of any mode that will run
  std::uint64_t open_micro_batch_bytes = 0;  // what each further open micro-batch adds to them
  std::uint64_t graph_bytes = 0;             // what a layer adds to them, per open micro-batch, that keeps its graph
  // Layers, counted from the loss, whose parameters stay gathered from their first use in a step to their last; absent:
  // on several ranks in stage 3 those that the device budget has room for, else none.
  std::optional<std::uint64_t> held_layers;
  // Layers that recompute; absent: the plan keeps the graphs that the device budget has room for.
  std::optional<std::uint64_t> recomputed_layers;
  PerTier budgets{};                                        // 0 for nvme: there is no such tier
  std::optional<offload::TierKind> param, grad, optimizer;  // wanted homes; the plan chooses the others
  double param_host_share = 0;                              // of Placement, where the home is nvme
  double optimizer_host_share = 0;
  std::optional<double> optimizer_device_share;  // of EngineConfig
  UpdateSite update_site = UpdateSite::Auto;
  zero::UpdateCosts update_costs;
  offload::Access param_access = offload::Access::Write;  // of an update
  // The device is a GPU behind a link, where a copy has a price of its own: larger pieces then also pay without a
  // drive.
  bool device_behind_link = false;
  std::optional<std::uint64_t> slot_bytes;
  std::optional<std::uint64_t> look_ahead_bytes;
};

struct PlanRow {
  std::string what;  // "optimizer states", "gather buffers", ...
  PerTier bytes{};
};

struct MemoryPlan {
  Placement placement;
  zero::GatherAhead ahead = zero::GatherAhead::One;
  zero::Accumulation accumulation = zero::Accumulation::Horizontal;
  DType grad_type = DType::F32;                // of gradients at home
  std::vector<zero::GroupDivision> divisions;  // per group
  std::vector<std::size_t> grad_homes;         // per group, the group whose home its gradient uses
  std::size_t kept_graphs = 0;                 // layers, counted from the loss, that do not recompute
  std::size_t held_layers = 0;                 // counted from the loss, that are gathered once a step
  std::vector<zero::SlotClass> gather_slots;
  std::vector<zero::SlotClass> grad_slots;
  std::vector<zero::SlotClass> grad_sum_slots;  // for gradients that are summed on the device before they travel
  std::uint64_t slot_bytes = 0;
  std::size_t slots = 0;         // pages in host memory
  std::size_t pins_at_once = 0;  // of those, in use by an update at once: the fewest that do
  std::size_t grad_staging_slots = 0;
  UpdatePlan updates;
  std::uint64_t look_ahead_bytes = 0;
  std::uint64_t torch_bytes = 0;  // of the device: activations and kept graphs
  std::vector<PlanRow> rows;
  PerTier need{};  // sums of the rows
  PerTier budgets{};
  // Bytes per step that the links carry, with what the cache saves taken off (an estimate; the engine counts the
  // truth).
  std::uint64_t nvme_read_per_step = 0;
  std::uint64_t nvme_written_per_step = 0;
  std::uint64_t link_per_step = 0;
  // Of parameters, gradients and optimizer states: what this rank keeps, and what one rank alone would.
  std::uint64_t states_bytes = 0;
  std::uint64_t whole_states_bytes = 0;
  double padding = 0;       // share of states_bytes that belongs to no parameter
  SentBytes sent_per_step;  // to other ranks, by this one; exact
};

// The size of the buffer through which weights are read from files and written to them.
inline constexpr std::uint64_t kFileBufferBytes = 4ULL << 20;

// Chooses the placement with the least traffic that fits. Throws: OutOfBudget with the table, the smallest budgets that
// would do, and other changes that help; ConfigError when nvme is asked for and there is none.
MemoryPlan make_plan(const PlanRequest& request);

// The table that `strata plan`, `strata train` and refusals print: one row per use, one column per tier, sums against
// budgets.
std::string to_table(const MemoryPlan& plan);

}  // namespace strata::engine
