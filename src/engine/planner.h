// Planner: chooses the placement of a run. Private to memory_plan.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/update_plan.h"

namespace strata::engine {

// Pieces must begin on the grid of the norm's blocks in every type: 64 Ki elements of 4 bytes.
inline constexpr std::uint64_t kSlotGranule = ShardMath::kNormBlock * 4;

constexpr std::size_t index(offload::TierKind tier) {
  return static_cast<std::size_t>(tier);
}

// In whole MiB, the unit of what a refusal recommends.
PerTier in_mib(const PerTier& bytes);

// Sums that do not depend on the placement. A home is whole pages; only 8-bit states are not by themselves.
struct ClassTotals {
  std::uint64_t param = 0;
  std::uint64_t grad = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t optimizer_on_device = 0;  // were all of it at home there, where each shard begins a page
};

// The visits of a step in one order, and what follows from it.
struct StepOrder {
  zero::Accumulation accumulation = zero::Accumulation::Horizontal;
  std::vector<zero::Visit> visits;
  // Of two micro-batches at most: no more groups than in these are unsharded, or get gradients, side by side.
  std::vector<zero::Visit> round;
  std::uint64_t gathered = 0;           // bytes of parameters gathered in one step
  std::uint64_t grads_sent = 0;         // bytes of gradients that go to a host home in one step
  bool sums_on_device = false;          // before they go
  bool grads_need_staging = false;      // on a host home
  std::uint64_t grads_stored = 0;       // bytes that arrive at homes in one step
  std::uint64_t grads_added = 0;        // of these, to what is there already
  std::vector<std::size_t> grad_homes;  // in device or host memory
  std::uint64_t grad_home_bytes = 0;    // of these
  std::vector<zero::GroupDivision> divisions;
  std::uint64_t local_grad_bytes = 0;                    // where ranks add by themselves first
  std::uint64_t grads_in_these = 0;                      // gradients that are parts of those where they are in memory
  std::vector<std::size_t> contributions, summed_first;  // per group
  std::size_t held_layers = 0;
  SentBytes sent;        // to other ranks in one step
  std::size_t open = 1;  // micro-batches at the same time
};

class Planner {
 public:
  // `request` must outlive the planner.
  explicit Planner(const PlanRequest& request);
  // The cheapest plan that fits, or nothing. Gradients go to the drive only where memory forces them.
  std::optional<MemoryPlan> best() const;
  // The plan whose needs exceed the budgets least: what a refusal recommends.
  MemoryPlan closest() const;

 private:
  std::optional<MemoryPlan> best_of(std::span<const Placement> placements) const;
  DType grad_type() const;
  std::size_t world() const { return request_.compute->layouts().front().world(); }  // that divide the model
  // Whether the gathered parameters are the home itself.
  bool gathered_in_place(const zero::GroupDivision& group, const Placement& placement) const;
  // Of a group with so many gathers in one step.
  SentBytes sent_for(std::size_t group, const StepOrder& order, std::size_t gathers) const;
  StepOrder order_of(zero::Accumulation accumulation) const;
  // Counts gathers and what is sent for as many held layers.
  void hold(StepOrder& order, std::size_t layers) const;
  std::vector<zero::SlotClass> gather_slots(const StepOrder& order, const Placement& placement,
                                            zero::GatherAhead ahead) const;
  std::vector<bool> held_groups(const StepOrder& order) const {
    return training_ ? zero::last_groups(*request_.compute, order.held_layers) : std::vector<bool>{};
  }
  // Spare device memory, as much as fits.
  void hold_layers(MemoryPlan& plan, StepOrder& order) const;
  std::vector<Placement> placements() const;
  std::uint64_t smallest_slot() const;
  // A class of shards: on its home, but for the share that stays in host memory, and what lies on the device besides.
  static void add_class(MemoryPlan& plan, std::string what, offload::TierKind home, std::uint64_t bytes,
                        std::uint64_t in_host, std::uint64_t on_device = 0);
  static void add_row(MemoryPlan& plan, std::string what, offload::TierKind tier, std::uint64_t bytes);
  MemoryPlan minimal(const StepOrder& order, const Placement& placement, zero::GatherAhead ahead) const;
  void fill_rows(MemoryPlan& plan, const StepOrder& order) const;
  static bool fits(const MemoryPlan& plan);
  UpdateShape update_shape() const;

  // States of whole groups on the device, although that is not their home.
  struct Resident {
    std::uint64_t bytes = 0;
    std::uint64_t on_device = 0;  // what they take there
  };
  Resident resident_states(const Placement& placement) const;
  // Bytes of split classes that stay in host memory.
  struct HostShares {
    std::uint64_t param = 0;
    std::uint64_t optimizer = 0;
  };
  // Of classes at home on nvme, whatever the plan then chooses.
  HostShares split_classes() const;
  HostShares host_shares(const Placement& placement) const;
  std::uint64_t on_nvme(const MemoryPlan& plan) const;

  // Larger slots make larger requests, and larger copies of what is streamed.
  void grow_slots(MemoryPlan& plan, const StepOrder& order) const;
  // More slots cache what would be read again.
  void use_spare_host_memory(MemoryPlan& plan, const StepOrder& order) const;
  // Graphs first: what fits need not be computed twice, and computing is what a step has most of. Then, where they come
  // from other ranks, parameters, then staging, which serves every update, and at last states, each of which saves only
  // its own way over a drive or a link.
  void use_spare_device_memory(MemoryPlan& plan, StepOrder& order) const;
  // Whether spare device memory may take states: where their home was left open.
  bool may_keep_states_on_device(const MemoryPlan& plan) const;
  // As many as the spare memory holds.
  void keep_states_on_device(MemoryPlan& plan, const StepOrder& order) const;
  static std::uint64_t spare_on_device(const MemoryPlan& plan);
  // Layers that can keep their graphs: those between the first and the last one that backward visits.
  std::size_t graphs() const {
    const std::size_t first = std::max<std::size_t>(zero::lowest_trained_layer(*request_.compute), 1);
    return training_ ? request_.compute->layers() - 1 - std::min(first, request_.compute->layers() - 1) : 0;
  }
  std::uint64_t graph_bytes(const StepOrder& order) const { return order.open * request_.graph_bytes; }
  bool fits_with(MemoryPlan plan, const StepOrder& order) const;
  // Seconds of an imagined machine whose drive moves 2 GB/s and whose link moves 20: only the order of the plans
  // matters.
  double cost_of(MemoryPlan& plan, const StepOrder& order) const;

  const PlanRequest& request_;
  const bool training_;
  std::vector<std::uint64_t> group_bytes_;  // flat, in the group's type
  std::vector<std::uint64_t> grad_bytes_;   // at home, of what this rank updates
  std::vector<std::uint64_t> sum_bytes_;    // flat, in fp32
  std::uint64_t whole_params_ = 0;          // bytes of those that are whole on every rank
  std::uint64_t node_params_ = 0;           // of those divided a second time inside the node, this rank's part
  std::uint64_t trained_params_ = 0;        // bytes of those that are not frozen
  ClassTotals totals_;
  double padding_ = 0;                 // share of the flat layouts
  std::uint64_t whole_states_ = 0;     // what one rank alone would hold of them, without padding
  std::uint64_t asked_on_device_ = 0;  // of states, in whole groups
  HostShares split_;
  std::vector<StepOrder> orders_;  // that the plan may choose from
};

}  // namespace strata::engine
