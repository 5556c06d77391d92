// SimulatedStep: training steps in simulated time. The order of the accesses, the store and the plan are the real code;
// the drive and the computing are numbers.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/optimizer_config.h"
#include "offload/look_ahead.h"
#include "offload/shard_store.h"
#include "support/oracle_order.h"
#include "support/pipeline_oracle.h"
#include "support/simulated_actors.h"
#include "support/simulated_drive.h"
#include "support/store_rig.h"
#include "zero/visits.h"

namespace strata::test {

struct SimulatedShape {
  std::size_t layers = 8;
  std::uint64_t layer_numel = 8192;  // parameters of a layer
  bool weights_on_nvme = true;
  OptimizerConfig optimizer = {};
  zero::UpdateTime update_time = zero::UpdateTime::AfterBackward;
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
    for (const zero::GroupShards& group : shards_) pieces_updated_.push_back(store_.pieces(group.param));
    store_.set_schedule(train_);
  }
  ~SimulatedStep() { store_.set_schedule(nullptr); }

  // Averages over steps in the steady state. A step ends with its backward, or with its update when that comes after.
  StepCost steady(int filling = 4, int measured = 4) {
    Mark from = mark();
    Mark to;
    run_steps(filling + measured, [&, done = 0]() mutable {
      ++done;
      if (done == filling) from = mark();
      if (done == filling + measured) to = mark();
    });
    const double unit = static_cast<double>(kPageBytes) * measured;
    return {(to.now - from.now) / measured, static_cast<double>(to.link.bytes_read - from.link.bytes_read) / unit,
            static_cast<double>(to.link.bytes_written - from.link.bytes_written) / unit};
  }

  // Counts of one step, in pages.
  StepCost one_step() { return steady(0, 1); }

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
  // Of the layers, and, when that comes after backward, the update.
  double compute_seconds() const {
    return forward_backward_seconds() + (in_lane() ? 0 : layer_update_seconds() * static_cast<double>(shape_.layers));
  }
  double forward_backward_seconds() const {
    return std::accumulate(seconds_.visits.begin(), seconds_.visits.end(), 0.0);
  }
  double layer_update_seconds() const {
    return static_cast<double>(shape_.layer_numel) * seconds_.update_seconds_per_element;
  }
  // That a chunk of an update takes, on an average.
  double chunk_pages() const {
    const double layer = state_bytes_per_element(shape_.optimizer, DType::BF16) + (shape_.weights_on_nvme ? 2 : 0);
    return layer / 4;
  }
  std::size_t pages() const { return oracle_accesses().pages; }
  // How many full pages these would fill.
  double pages_of(const std::vector<offload::PieceId>& pieces) const {
    double sum = 0;
    for (const offload::PieceId piece : pieces) sum += page_size(store_, piece);
    return sum;
  }
  OracleAnswer oracle() const {
    return best_pipeline(
        oracle_accesses(), shape_.slots, shape_.weights_on_nvme ? store_.pieces(shards_[0].param) : 0,
        {shape_.read_rate, shape_.write_rate, shape_.latency_seconds, shape_.duplex == offload::Duplex::Half});
  }

 private:
  struct Mark {
    double now = 0;
    offload::LinkStats link;
  };
  Mark mark() const { return {drive_.now(), drive_.stats()}; }
  bool in_lane() const { return shape_.update_time != zero::UpdateTime::AfterBackward; }
  OracleStep oracle_accesses() const {
    return OracleOrder(store_, updates_, seconds_, shape_.update_time).of(actions_);
  }
  static std::vector<offload::ScheduledAccess> accesses_of(const std::vector<offload::TimedAccess>& timed) {
    std::vector<offload::ScheduledAccess> result;
    for (const offload::TimedAccess& a : timed) result.push_back({a.piece, a.access, a.lane});
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
      std::vector<std::size_t> per_value;
      for (const StateSpec& state : states_) {
        group.states.push_back(
            add({"state", ShardKind::OptimState, state.dtype, state.values_for(shape_.layer_numel), TierKind::Nvme}));
        per_value.push_back(state.elements_per_value);
      }
      const bool reads = reads_param(shape_.optimizer, DType::BF16);
      updates_.push_back({group.param, reads ? offload::Access::ReadWrite : offload::Access::Write, group.grad,
                          group.states, std::move(per_value)});
    }
  }

  // The visits of zero::train_visits() for layers with one group each.
  void plan() {
    std::vector<zero::Visit> visits;
    std::vector<zero::Visit> forward;
    const auto visit = [&](std::size_t layer, zero::Direction direction, double seconds) {
      std::vector<std::size_t> made;
      if (direction == zero::Direction::Backward) made.push_back(layer);
      visits.push_back({0, layer, direction, {layer}, made});
      seconds_.visits.push_back(seconds);
    };
    for (std::size_t l = 0; l + 1 < shape_.layers; ++l) visit(l, zero::Direction::Forward, shape_.forward_seconds);
    for (std::size_t l = shape_.layers; l-- > 0;) visit(l, zero::Direction::Backward, 3 * shape_.forward_seconds);
    for (std::size_t l = 0; l < shape_.layers; ++l) forward.push_back({0, l, zero::Direction::Forward, {l}, {}});
    seconds_.update_seconds_per_element = shape_.update_seconds_per_page / kFloats;
    actions_ = zero::plan_actions(visits, zero::GatherAhead::One, shape_.update_time);
    evaluation_actions_ = zero::plan_actions(forward, zero::GatherAhead::One);
    timed_ = zero::timed_accesses(store_, shards_, visits, actions_, &updates_, seconds_, shape_.update_time);
    timed_evaluation_ = zero::timed_accesses(store_, shards_, forward, evaluation_actions_, nullptr, seconds_);
    plan_ = offload::plan_look_ahead(timed_, rates(),
                                     {.slots = shape_.slots, .slot_bytes = kPageBytes, .pinned = most_pinned()});
  }
  std::size_t most_pinned() const { return states_.size() + (shape_.weights_on_nvme ? 1 : 0); }
  offload::DriveRates rates() const {
    constexpr auto kPage = static_cast<double>(kPageBytes);
    return {shape_.read_rate * kPage, shape_.write_rate * kPage, shape_.latency_seconds, shape_.duplex};
  }

  const offload::Pin& wait(const offload::Pin& pin) {
    actors_.wait_until([&] { return pin.ready().ready(); });
    (void)pin.wait();
    return pin;
  }
  offload::Pin acquire(offload::PieceId piece, offload::Access access, offload::Lane lane) {
    actors_.note_change();
    return store_.acquire(piece, access, lane);
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

  // As Engine: the layers run, the updates beside them in a lane of their own, where they are not after backward.
  void run_steps(int steps, const std::function<void()>& on_step) {
    std::vector<std::function<void()>> actors;
    bool last = false;
    actors.emplace_back([&] {
      for (int step = 0; step < steps; ++step) {
        run_visits(actions_, seconds_.visits);
        if (shape_.update_time != zero::UpdateTime::DuringBackward) {
          for (std::size_t group = 0; group < shape_.layers; ++group) queue_update(group, drive_.now());
        }
        if (!in_lane()) run_updates();
        on_step();
      }
      last = true;
      store_.let_lanes_pass();  // as before the engine waits for updates
    });
    if (in_lane()) {
      actors.emplace_back([&] {
        for (;;) {
          actors_.wait_until([&] { return last || !queue_.empty(); });
          if (queue_.empty()) return;
          run_updates();
        }
      });
    }
    actors_.run(std::move(actors));
  }

  void queue_update(std::size_t group, double gradient_at) {
    pieces_updated_[group] = 0;
    queue_.emplace_back(group, gradient_at);
  }
  void run_updates() {
    while (!queue_.empty()) {
      const auto [group, gradient_at] = queue_.front();
      actors_.sleep_until(gradient_at);
      run_update(group);
      queue_.pop_front();
    }
  }

  // As LayerRunner and ParamGroup: a gather waits for its group's update, under the forward page by page, and ends when
  // its pages are copied to the device, where there is room for two layers, so it begins with the computation of the
  // layer before.
  void run_visits(const std::vector<zero::Action>& actions, const std::vector<double>& seconds) {
    double begin = drive_.now();
    double end = drive_.now();
    for (const zero::Action& action : actions) {
      if (action.kind == zero::Action::Kind::Run) {
        begin = std::max(drive_.now(), end);
        end = begin + seconds[action.index];
      }
      if (action.kind == zero::Action::Kind::Update) queue_update(action.index, end);
      if (action.kind == zero::Action::Kind::WaitForUpdate) {
        actors_.sleep_until(begin);
        actors_.wait_until([&] { return updated(action.index); });
      }
      if (action.kind != zero::Action::Kind::Unshard) continue;
      actors_.sleep_until(begin);
      if (shape_.update_time != zero::UpdateTime::UnderForward) {
        actors_.wait_until([&] { return updated(action.index); });
      }
      gather(action.index);
    }
    actors_.sleep_until(end);
  }

  bool updated(std::size_t group) const { return pieces_updated_[group] == store_.pieces(shards_[group].param); }
  void gather(std::size_t group) {
    const offload::ShardId param = shards_[group].param;
    std::vector<Event> copies;
    for (std::uint32_t p = 0; p < store_.pieces(param); ++p) {
      actors_.wait_until([&] { return pieces_updated_[group] > p; });
      offload::Pin pin = acquire({param, p}, offload::Access::Read, offload::Lane::Gathers);
      copies.push_back(pin.ready());
      pin.ready().on_complete([this, bytes = pin.bytes(), version = versions_.at(id({param, p}))](const auto& error) {
        STRATA_EXPECTS(!error && has_stamp(bytes, version), "a weight has other bytes than it was given");
      });
      pin.release_after(copies.back());
    }
    for (const Event& copy : copies) actors_.wait_until([&] { return copy.ready(); });
  }

  // As OptimizerPipeline on the host.
  void run_update(std::size_t group) {
    const zero::UpdateShards& update = updates_[group];
    std::vector<offload::Pin> pins(update.count());
    std::vector<offload::PieceId> pieces(update.count());
    const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
      pins[position].release();
      if (position == zero::UpdateShards::kParam) pieces_updated_[group] = piece.piece;
      pins[position] = acquire(piece, update.access(position), zero::update_lane(shape_.update_time));
      pieces[position] = piece;
    };
    const auto on_chunk = [&](std::uint64_t, std::uint64_t numel) {
      for (std::size_t i = 0; i < pins.size(); ++i) {
        wait(pins[i]);
        if (reads(update.access(i))) expect_version(pins[i], pieces[i]);
      }
      actors_.sleep_until(drive_.now() + static_cast<double>(numel) * seconds_.update_seconds_per_element);
      for (std::size_t i = 0; i < pins.size(); ++i) {
        if (writes(update.access(i))) new_version(pins[i], pieces[i]);
      }
    };
    zero::walk_update(store_, update, on_piece, on_chunk);
    for (offload::Pin& pin : pins) pin.release();
    pieces_updated_[group] = store_.pieces(update.param);
  }

  const SimulatedShape shape_;
  const std::vector<StateSpec> states_ = state_specs(shape_.optimizer, DType::BF16);
  Budget host_{"host memory", std::uint64_t{256} << 20};
  offload::HostTier host_tier_{host_};
  SlotPool slots_{allocate_host(host_, shape_.slots* kPageBytes, MemoryTag::Staging), kPageBytes};
  SimulatedDrive drive_{rates(), kPageBytes / 4};
  SimulatedActors actors_{drive_};
  offload::ShardStore store_{{nullptr, &host_tier_, &drive_},
                             slots_,
                             std::make_unique<offload::NextUsePolicy>(),
                             {.on_blocked = [this] { actors_.wait_for_change(); }}};
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
  std::deque<std::pair<std::size_t, double>> queue_;  // groups to update, and since when their gradients are there
  std::vector<std::uint32_t> pieces_updated_;         // of each group's weights
};

}  // namespace strata::test
