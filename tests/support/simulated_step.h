// SimulatedStep: a training step in simulated time. The order of the accesses, the store and the plan are the real
// code; the drive and the computing are numbers.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "offload/look_ahead.h"
#include "offload/shard_store.h"
#include "support/pipeline_oracle.h"
#include "support/simulated_drive.h"
#include "support/store_rig.h"
#include "zero/visits.h"

namespace strata::test {

struct SimulatedShape {
  std::size_t layers = 8;
  std::uint64_t layer_numel = 8192;  // parameters of a layer
  bool weights_on_nvme = true;
  std::vector<DType> states = {DType::F32, DType::F32, DType::F32};
  double forward_seconds = 1;          // of a layer; backward with recomputation takes three times that
  double update_seconds_per_page = 0;  // per page of fp32 elements
  std::size_t slots = 32;
  // In pages per second.
  double read_rate = 1;
  double write_rate = 1;
  double latency_seconds = 0;
  offload::Duplex duplex = offload::Duplex::Full;
};

struct StepCost {
  double seconds = 0;
  double read_pages = 0;
  double written_pages = 0;
};

class SimulatedStep {
 public:
  static constexpr std::uint64_t kFloats = kPageBytes / sizeof(float);

  explicit SimulatedStep(const SimulatedShape& shape) : shape_(shape) {
    add_shards();
    plan();
    store_.set_look_ahead(plan_.look_ahead_bytes);
    train_ = std::make_shared<offload::Schedule>("train", accesses_of(timed_), plan_.kept);
    evaluate_ = std::make_shared<offload::Schedule>("evaluate", accesses_of(timed_evaluation_));
    write_first_versions();
    store_.set_schedule(train_);
  }
  ~SimulatedStep() { store_.set_schedule(nullptr); }

  // Averages over steps in the steady state.
  StepCost steady(int filling = 4, int measured = 4) {
    for (int i = 0; i < filling; ++i) step();
    const double from = drive_.now();
    const offload::LinkStats before = drive_.stats();
    for (int i = 0; i < measured; ++i) step();
    const offload::LinkStats after = drive_.stats();
    const double unit = static_cast<double>(kPageBytes) * measured;
    return {(drive_.now() - from) / measured, static_cast<double>(after.bytes_read - before.bytes_read) / unit,
            static_cast<double>(after.bytes_written - before.bytes_written) / unit};
  }

  // Counts of one step, in pages.
  StepCost one_step() { return steady(0, 1); }

  void step() {
    run_visits(actions_, seconds_.visits);
    for (const zero::UpdateShards& update : updates_) run_update(update);
    ++steps_;
  }
  void evaluate() {
    store_.set_schedule(evaluate_, train_);
    run_visits(evaluation_actions_, std::vector<double>(shape_.layers, shape_.forward_seconds));
    store_.set_schedule(train_);
  }
  // An access that no schedule knows of.
  void stray(offload::PieceId piece) { (void)wait(store_.acquire(piece, offload::Access::Read)); }
  offload::PieceId state_piece(std::size_t layer, std::uint32_t piece) const {
    return {shards_[layer].states[0], piece};
  }

  const offload::LookAhead& look_ahead() const { return plan_; }
  offload::StoreStats stats() const { return store_.stats(); }
  double compute_seconds() const {
    double sum = 0;
    for (const offload::TimedAccess& a : timed_) sum += a.seconds;
    return sum;
  }
  std::size_t pages() const {
    std::size_t count = 0;
    for (const OracleAccess& a : oracle_accesses()) count = std::max(count, a.page + 1);
    return count;
  }
  OracleAnswer oracle() const {
    return best_pipeline(
        oracle_accesses(), shape_.slots, shape_.weights_on_nvme ? store_.pieces(shards_[0].param) : 0,
        {shape_.read_rate, shape_.write_rate, shape_.latency_seconds, shape_.duplex == offload::Duplex::Half});
  }

 private:
  std::vector<OracleAccess> oracle_accesses() const {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> numbers;
    std::vector<OracleAccess> result;
    for (const offload::TimedAccess& a : timed_) {
      const std::size_t page =
          numbers.emplace(std::pair(a.piece.shard.index, a.piece.piece), numbers.size()).first->second;
      result.push_back({page, reads(a.access), writes(a.access), a.seconds});
    }
    return result;
  }
  static std::vector<offload::ScheduledAccess> accesses_of(const std::vector<offload::TimedAccess>& timed) {
    std::vector<offload::ScheduledAccess> result;
    for (const offload::TimedAccess& a : timed) result.push_back({a.piece, a.access});
    return result;
  }
  void add_shards() {
    using offload::ShardKind;
    using offload::TierKind;
    const TierKind weights = shape_.weights_on_nvme ? TierKind::Nvme : TierKind::Host;
    const auto add = [&](offload::ShardSpec spec) {
      shards_of_store_.push_back(store_.add(std::move(spec)));
      return shards_of_store_.back();
    };
    for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
      zero::GroupShards& group = shards_.emplace_back();
      group.param = add({"param", ShardKind::Param, DType::BF16, shape_.layer_numel, weights});
      group.grad = add({"grad", ShardKind::Grad, DType::BF16, shape_.layer_numel, TierKind::Host});
      for (const DType dtype : shape_.states) {
        group.states.push_back(add({"state", ShardKind::OptimState, dtype, shape_.layer_numel, TierKind::Nvme}));
      }
      updates_.push_back({group.param, offload::Access::Write, group.grad, group.states});
    }
  }

  // The visits of zero::train_visits() for layers with one group each.
  void plan() {
    std::vector<zero::Visit> visits;
    std::vector<zero::Visit> forward;
    const auto visit = [&](std::size_t layer, zero::Direction direction, double seconds) {
      visits.push_back({0, layer, direction, {layer}, {}});
      seconds_.visits.push_back(seconds);
    };
    for (std::size_t l = 0; l + 1 < shape_.layers; ++l) visit(l, zero::Direction::Forward, shape_.forward_seconds);
    for (std::size_t l = shape_.layers; l-- > 0;) visit(l, zero::Direction::Backward, 3 * shape_.forward_seconds);
    for (std::size_t l = 0; l < shape_.layers; ++l) forward.push_back({0, l, zero::Direction::Forward, {l}, {}});
    seconds_.update_seconds_per_element = shape_.update_seconds_per_page / kFloats;
    actions_ = zero::plan_actions(visits, zero::GatherAhead::One);
    evaluation_actions_ = zero::plan_actions(forward, zero::GatherAhead::One);
    timed_ = zero::timed_accesses(store_, shards_, visits, actions_, &updates_, seconds_);
    timed_evaluation_ =
        zero::timed_accesses(store_, shards_, forward, evaluation_actions_, nullptr, seconds_);
    plan_ = offload::plan_look_ahead(timed_, rates(),
                                     {.slots = shape_.slots, .slot_bytes = kPageBytes, .pinned = most_pinned()});
  }
  std::size_t most_pinned() const { return shape_.states.size() + (shape_.weights_on_nvme ? 1 : 0); }
  offload::DriveRates rates() const {
    constexpr auto kPage = static_cast<double>(kPageBytes);
    return {shape_.read_rate * kPage, shape_.write_rate * kPage, shape_.latency_seconds, shape_.duplex};
  }

  const offload::Pin& wait(const offload::Pin& pin) {
    while (!pin.ready().ready()) drive_.advance();
    (void)pin.wait();
    return pin;
  }

  static std::uint64_t id(offload::PieceId piece) { return piece.shard.index * 1000 + piece.piece; }
  void expect_version(const offload::Pin& pin, offload::PieceId piece) {
    STRATA_EXPECTS(has_stamp(pin.bytes(), versions_.at(id(piece))), "a page has other bytes than it was given");
  }
  void new_version(const offload::Pin& pin, offload::PieceId piece) {
    const std::uint64_t version = ++next_version_;
    stamp(pin.bytes(), version);
    versions_[id(piece)] = version;
  }
  void write_first_versions() {
    for (const offload::ShardId shard : shards_of_store_) {
      for (std::uint32_t p = 0; p < store_.pieces(shard); ++p) {
        const offload::Pin pin = store_.acquire({shard, p}, offload::Access::Write);
        new_version(pin, {shard, p});
      }
    }
  }

  // As LayerRunner and ParamGroup: a gather ends when its pages are copied to the device, where there is room for two
  // layers, so it begins with the computation of the layer before.
  void run_visits(const std::vector<zero::Action>& actions, const std::vector<double>& seconds) {
    double begin = drive_.now();
    double end = drive_.now();
    for (const zero::Action& action : actions) {
      if (action.kind == zero::Action::Kind::Run) {
        begin = std::max(drive_.now(), end);
        end = begin + seconds[action.index];
      }
      if (action.kind != zero::Action::Kind::Unshard) continue;
      drive_.advance_to(begin);
      const offload::ShardId param = shards_[action.index].param;
      std::vector<Event> copies;
      for (std::uint32_t p = 0; p < store_.pieces(param); ++p) {
        offload::Pin pin = store_.acquire({param, p}, offload::Access::Read);
        copies.push_back(pin.ready());
        pin.ready().on_complete([this, bytes = pin.bytes(), version = versions_.at(id({param, p}))](const auto& error) {
          STRATA_EXPECTS(!error && has_stamp(bytes, version), "a weight has other bytes than it was given");
        });
        pin.release_after(copies.back());
      }
      for (const Event& copy : copies) {
        while (!copy.ready()) drive_.advance();
      }
    }
    drive_.advance_to(end);
  }

  // As OptimizerPipeline on the host.
  void run_update(const zero::UpdateShards& update) {
    std::vector<offload::Pin> pins(update.count());
    std::vector<offload::PieceId> pieces(update.count());
    const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
      pins[position].release();
      pins[position] = store_.acquire(piece, update.access(position));
      pieces[position] = piece;
    };
    const auto on_chunk = [&](std::uint64_t, std::uint64_t numel) {
      for (std::size_t i = 0; i < pins.size(); ++i) {
        wait(pins[i]);
        if (reads(update.access(i))) expect_version(pins[i], pieces[i]);
      }
      drive_.advance_to(drive_.now() + static_cast<double>(numel) * seconds_.update_seconds_per_element);
      for (std::size_t i = 0; i < pins.size(); ++i) {
        if (writes(update.access(i))) new_version(pins[i], pieces[i]);
      }
    };
    zero::walk_update(store_, update, on_piece, on_chunk);
  }

  const SimulatedShape shape_;
  Budget host_{"host memory", std::uint64_t{256} << 20};
  offload::HostTier host_tier_{host_};
  SlotPool slots_{allocate_host(host_, shape_.slots* kPageBytes, MemoryTag::Staging), kPageBytes};
  SimulatedDrive drive_{rates(), kPageBytes / 4};
  offload::ShardStore store_{{nullptr, &host_tier_, &drive_},
                             slots_,
                             std::make_unique<offload::NextUsePolicy>(),
                             {.on_blocked = [this] { drive_.advance(); }}};
  std::vector<offload::ShardId> shards_of_store_;
  std::vector<zero::GroupShards> shards_;
  std::vector<zero::UpdateShards> updates_;
  std::vector<zero::Action> actions_;
  std::vector<zero::Action> evaluation_actions_;
  zero::StepSeconds seconds_;
  std::vector<offload::TimedAccess> timed_;
  std::vector<offload::TimedAccess> timed_evaluation_;
  offload::LookAhead plan_;
  std::shared_ptr<const offload::Schedule> train_;
  std::shared_ptr<const offload::Schedule> evaluate_;
  std::map<std::uint64_t, std::uint64_t> versions_;
  std::uint64_t next_version_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace strata::test
