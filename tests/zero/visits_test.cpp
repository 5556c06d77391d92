#include "zero/visits.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "support/test_seed.h"
#include "support/toy_engine.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::ToyCompute;
using test::ToyEngine;
using Kind = Action::Kind;

// One gather for each group that is held, and only while it is needed.
TEST(PlanActions, HeldGroupsAreGatheredOnceAndLetGoAfterTheirLastVisit) {
  const test::ToyCompute compute(3, DType::F32, 1, test::ToyCompute::Head::Own);
  for (const std::size_t layers : {0, 1, 2, 4, 5}) {
    for (const std::size_t micro_batches : {1, 3}) {
      const std::vector<Visit> visits = train_visits(compute, micro_batches);
      const std::vector<bool> held = last_groups(compute, layers);
      EXPECT_EQ(std::count(held.begin(), held.end(), true), static_cast<std::ptrdiff_t>(layers));
      const auto stay = unsharded_groups(visits, held);
      std::vector<int> gathers(held.size(), 0), open(held.size(), 0);
      for (const Action& action : plan_actions(visits, GatherAhead::None, UpdateTime::AfterBackward, held)) {
        if (action.kind == Action::Kind::Unshard) ++gathers[action.index], ++open[action.index];
        if (action.kind == Action::Kind::Reshard) --open[action.index];
        if (action.kind != Action::Kind::Run) continue;
        for (std::size_t g = 0; g < held.size(); ++g) {
          EXPECT_EQ(open[g], std::count(stay[action.index].begin(), stay[action.index].end(), g));
        }
      }
      for (std::size_t g = 0; g < held.size(); ++g) {
        EXPECT_EQ(open[g], 0);
        const bool block = g > 0 && g + 1 < held.size();
        // The loss of one micro-batch and the backward of the last block follow each other.
        EXPECT_EQ(gathers[g], held[g] ? 1 : static_cast<int>(block ? 2 * micro_batches : micro_batches)) << g;
      }
    }
  }
}

TEST(TrainVisits, RunForwardUpToTheLastLayerThenAllLayersBackward) {
  const ToyCompute compute(2, DType::F32);
  const std::vector<Visit> visits = train_visits(compute, 2);
  ASSERT_EQ(visits.size(), 2 * 7U);
  for (std::size_t m = 0; m < 2; ++m) {
    std::vector<std::pair<std::size_t, Direction>> order;
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(visits[m * 7 + i].micro_batch, m);
      order.emplace_back(visits[m * 7 + i].layer, visits[m * 7 + i].direction);
    }
    const auto f = Direction::Forward;
    const auto b = Direction::Backward;
    EXPECT_EQ(order, (decltype(order){{0, f}, {1, f}, {2, f}, {3, b}, {2, b}, {1, b}, {0, b}}));
  }
}

TEST(TrainVisits, BackwardOfALayerThatDoesNotReadItsParametersGathersNothing) {
  const std::vector<Visit> visits = train_visits(ToyCompute(1, DType::F32), 1);
  EXPECT_TRUE(visits.back().groups.empty());
  EXPECT_EQ(visits.back().grad_groups, std::vector<std::size_t>{0});
  EXPECT_EQ(visits[2].groups, (std::vector<std::size_t>{0, 2})) << "the last layer names the tied table";
}

TEST(TrainVisits, OfVerticalAccumulationTakeAllMicroBatchesThroughALayerBeforeTheNext) {
  const ToyCompute compute(1, DType::F32);
  std::vector<std::pair<std::size_t, std::size_t>> order;  // layer, micro-batch
  for (const Visit& visit : train_visits(compute, 2, Accumulation::Vertical)) {
    order.emplace_back(visit.layer, visit.micro_batch);
  }
  EXPECT_EQ(order, (decltype(order){{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {1, 0}, {1, 1}, {0, 0}, {0, 1}}));
}

TEST(TrainVisits, OfOneMicroBatchAreTheSameEitherWay) {
  const ToyCompute compute(2, DType::F32);
  const std::vector<Visit> horizontal = train_visits(compute, 1);
  const std::vector<Visit> vertical = train_visits(compute, 1, Accumulation::Vertical);
  ASSERT_EQ(vertical.size(), horizontal.size());
  for (std::size_t v = 0; v < vertical.size(); ++v) {
    EXPECT_EQ(vertical[v].layer, horizontal[v].layer);
    EXPECT_EQ(vertical[v].direction, horizontal[v].direction);
  }
}

TEST(TrainVisits, OfVerticalAccumulationGatherAGroupOncePerDirection) {
  for (const std::size_t micro_batches : {1, 2, 7}) {
    for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
      const std::vector<Visit> visits = train_visits(ToyCompute(3, DType::F32), micro_batches, Accumulation::Vertical);
      std::map<std::size_t, std::size_t> gathers;
      for (const Action& action : plan_actions(visits, ahead)) gathers[action.index] += action.kind == Kind::Unshard;
      EXPECT_EQ(gathers[1], 2U);
      EXPECT_EQ(gathers[4], 1U) << "the last layer's one visit";
    }
  }
}

TEST(TrainVisits, EndBackwardAtTheLowestLayerThatIsTrained) {
  using Groups = std::vector<std::size_t>;
  struct Case {
    ToyCompute::Head head;
    Groups frozen;
    std::size_t lowest;
  };
  for (const Case& c : {Case{ToyCompute::Head::Own, {}, 0}, Case{ToyCompute::Head::Own, {0, 1}, 2},
                        Case{ToyCompute::Head::Own, {1, 2}, 0}, Case{ToyCompute::Head::Own, {0, 3}, 1},
                        Case{ToyCompute::Head::Tied, {0, 1, 2}, 3}, Case{ToyCompute::Head::Tied, {1, 2, 3}, 0}}) {
    const ToyCompute compute(2, DType::F32, 1, c.head, ToyCompute::kVocabulary, c.frozen);
    EXPECT_EQ(lowest_trained_layer(compute), c.lowest);
    std::vector<std::size_t> backward;
    for (const Visit& visit : train_visits(compute, 1)) {
      if (visit.direction == Direction::Forward) {
        EXPECT_TRUE(visit.grad_groups.empty());
        continue;
      }
      backward.push_back(visit.layer);
      Groups trained = compute.groups_of(visit.layer);
      std::erase_if(trained, [&](std::size_t g) { return std::count(c.frozen.begin(), c.frozen.end(), g) > 0; });
      EXPECT_EQ(visit.grad_groups, trained);
    }
    std::vector<std::size_t> expected;
    for (std::size_t layer = 4; layer-- > c.lowest;) expected.push_back(layer);
    EXPECT_EQ(backward, expected);
  }
}

TEST(PlanActions, UpdateNoFrozenGroupDuringBackward) {
  const ToyCompute compute(3, DType::F32, 1, ToyCompute::Head::Own, ToyCompute::kVocabulary, {0, 2});
  std::vector<std::size_t> updated;
  const std::vector<Visit> visits = train_visits(compute, 2);
  for (const Action& action : plan_actions(visits, GatherAhead::One, UpdateTime::DuringBackward)) {
    if (action.kind == Kind::Update) updated.push_back(action.index);
  }
  EXPECT_EQ(updated, (std::vector<std::size_t>{4, 3, 1}));
}

TEST(ForwardVisits, RunEveryLayerOnceWithoutGradients) {
  const std::vector<Visit> visits = forward_visits(ToyCompute(2, DType::F32));
  ASSERT_EQ(visits.size(), 4U);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(visits[layer].layer, layer);
    EXPECT_TRUE(visits[layer].grad_groups.empty());
  }
}

TEST(CountContributions, ATiedGroupGetsOnePerLayerAndMicroBatch) {
  const ToyCompute compute(2, DType::F32);
  EXPECT_EQ(count_contributions(train_visits(compute, 3), 4), (std::vector<std::size_t>{6, 3, 3, 3}));
}

TEST(LeadingContributions, AreThoseThatFollowEachOtherFromOneLayer) {
  const ToyCompute compute(2, DType::F32);
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(leading_contributions(train_visits(compute, 3), 4), (Counts{1, 1, 1, 1}));
  // Six for the tied group, the head's three first.
  EXPECT_EQ(leading_contributions(train_visits(compute, 3, Accumulation::Vertical), 4), (Counts{3, 3, 3, 3}));
}

TEST(SameSumsVertically, UnlessLayersShareAGroup) {
  const ToyCompute tied(1, DType::F32);
  const ToyCompute own(1, DType::F32, 1, ToyCompute::Head::Own);
  EXPECT_TRUE(same_sums_vertically(own, 3));
  EXPECT_TRUE(same_sums_vertically(tied, 1));
  EXPECT_FALSE(same_sums_vertically(tied, 2));
}

// Follows `actions` and checks what the runner and the groups ask of them.
void check_actions(const std::vector<Visit>& visits, const std::vector<Action>& actions, GatherAhead ahead) {
  std::set<std::size_t> unsharded;
  std::set<std::size_t> bound;
  std::size_t next_visit = 0;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Kind::Unshard: {
        EXPECT_TRUE(unsharded.insert(action.index).second) << "group " << action.index << " is unsharded twice";
        break;
      }
      case Kind::WaitForUnshard:
        EXPECT_TRUE(unsharded.contains(action.index));
        EXPECT_TRUE(bound.insert(action.index).second) << "group " << action.index << " is bound twice";
        break;
      case Kind::Reduce:
        EXPECT_EQ(action.index + 1, next_visit) << "gradients follow their visit";
        EXPECT_FALSE(visits[action.index].grad_groups.empty());
        break;
      case Kind::Update:
      case Kind::WaitForUpdate:
        ADD_FAILURE() << "nobody asked for updates";
        break;
      case Kind::Reshard:
        EXPECT_EQ(bound.erase(action.index), 1U);
        EXPECT_EQ(unsharded.erase(action.index), 1U);
        break;
      case Kind::Run: {
        ASSERT_EQ(action.index, next_visit) << "visits run in order";
        const std::vector<std::size_t>& needed = visits[next_visit].groups;
        for (const std::size_t group : needed) EXPECT_TRUE(bound.contains(group));
        if (ahead == GatherAhead::None) {
          EXPECT_EQ(unsharded, (std::set<std::size_t>(needed.begin(), needed.end())));
        }
        ++next_visit;
        break;
      }
    }
    // What a window of one or two visits names is all that may be unsharded.
    std::set<std::size_t> window;
    for (std::size_t v = next_visit == 0 ? 0 : next_visit - 1; v < std::min(next_visit + 1, visits.size()); ++v) {
      window.insert(visits[v].groups.begin(), visits[v].groups.end());
    }
    for (const std::size_t group : unsharded) EXPECT_TRUE(window.contains(group)) << "group " << group;
  }
  EXPECT_EQ(next_visit, visits.size());
  EXPECT_TRUE(unsharded.empty()) << "a group stays unsharded";
}

TEST(PlanActions, EveryRunHasItsGroupsBoundAndNothingIsUnshardedTwice) {
  for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
    for (const std::size_t micro_batches : {1, 3}) {
      const std::vector<Visit> visits = train_visits(ToyCompute(3, DType::F32), micro_batches);
      check_actions(visits, plan_actions(visits, ahead), ahead);
      const std::vector<Visit> vertical =
          train_visits(ToyCompute(3, DType::F32), micro_batches, Accumulation::Vertical);
      check_actions(vertical, plan_actions(vertical, ahead), ahead);
    }
    const std::vector<Visit> forward = forward_visits(ToyCompute(3, DType::F32));
    check_actions(forward, plan_actions(forward, ahead), ahead);
  }
}

TEST(PlanActions, TheSameHoldsForAnyVisits) {
  const std::uint64_t seed = test::test_seed(9);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](std::size_t high) { return std::uniform_int_distribution<std::size_t>(0, high)(random); };
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    std::vector<Visit> visits;
    for (std::size_t n = pick(8) + 1; n > 0; --n) {
      std::set<std::size_t> groups;
      for (std::size_t k = pick(3); k > 0; --k) groups.insert(pick(4));
      visits.push_back({0, 0, Direction::Forward, {groups.begin(), groups.end()}, {}});
    }
    for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
      check_actions(visits, plan_actions(visits, ahead), ahead);
    }
  }
}

// What a plan of device slots relies on.
TEST(UnshardedGroups, OfTwoMicroBatchesNeedTheSlotsOfAnyNumber) {
  const std::vector<std::uint64_t> bytes{900, 500, 500, 400, 700};
  for (const auto head : {ToyCompute::Head::Own, ToyCompute::Head::Tied}) {
    const ToyCompute compute(3, DType::F32, 1, head);
    for (const Accumulation accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
      for (std::size_t layers = 0; layers <= compute.layers(); ++layers) {
        const std::vector<bool> held = last_groups(compute, layers);
        for (const std::size_t window : {1, 2}) {
          const auto slots = [&](std::size_t micro_batches) {
            const auto visits = train_visits(compute, micro_batches, accumulation);
            std::vector<std::vector<std::size_t>> made;
            for (const Visit& visit : visits) made.push_back(visit.grad_groups);
            std::vector<std::pair<std::uint64_t, std::size_t>> classes;
            for (const auto& groups : {unsharded_groups(visits, held), made}) {
              for (const SlotClass& slot : plan_slot_classes(bytes, groups, window)) {
                classes.emplace_back(slot.bytes, slot.count);
              }
            }
            return classes;
          };
          for (const std::size_t micro_batches : {3, 4, 7}) EXPECT_EQ(slots(micro_batches), slots(2)) << layers;
        }
      }
    }
  }
}

TEST(PlanActions, GradientsAreSentOnBeforeOrAfterTheGathersAhead) {
  const std::vector<Visit> visits = train_visits(ToyCompute(3, DType::F32), 2);
  for (const ReduceOrder order : {ReduceOrder::BeforeGathers, ReduceOrder::AfterGathers}) {
    const std::vector<Action> actions = plan_actions(visits, GatherAhead::One, UpdateTime::AfterBackward, {}, order);
    check_actions(visits, actions, GatherAhead::One);
    std::size_t reductions = 0, gathers_between = 0, ran = actions.size();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == Kind::Run) ran = i;
      if (actions[i].kind != Kind::Reduce) continue;
      ++reductions;
      for (std::size_t between = ran; between < i; ++between) gathers_between += actions[between].kind == Kind::Unshard;
    }
    EXPECT_EQ(reductions, 2 * 5U) << "five layers of two micro-batches";
    EXPECT_EQ(gathers_between > 0, order == ReduceOrder::AfterGathers);
  }
}

TEST(PlanActions, GatherAheadUnshardsTheNextVisitRightAfterARun) {
  const std::vector<Visit> visits = forward_visits(ToyCompute(1, DType::F32));
  const std::vector<Action> actions = plan_actions(visits, GatherAhead::One);
  const auto run = std::find_if(actions.begin(), actions.end(), [](const Action& a) { return a.kind == Kind::Run; });
  const auto next = std::find_if(actions.begin(), actions.end(),
                                 [](const Action& a) { return a.kind == Kind::Unshard && a.index == 1; });
  const auto second = std::find_if(run + 1, actions.end(), [](const Action& a) { return a.kind == Kind::Run; });
  EXPECT_LT(run, next);
  EXPECT_LT(next, second);
  EXPECT_TRUE(std::none_of(run + 1, next, [](const Action& a) { return a.kind == Kind::WaitForUnshard; }));
}

TEST(PlanActions, AGroupThatNeighbouringVisitsNeedStaysUnsharded) {
  const std::vector<Visit> visits(3, Visit{0, 0, Direction::Forward, {7}, {}});
  for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
    const std::vector<Action> actions = plan_actions(visits, ahead);
    EXPECT_EQ(std::count_if(actions.begin(), actions.end(), [](const Action& a) { return a.kind == Kind::Unshard; }),
              1);
  }
}

TEST(PlanActions, AnUpdateDuringBackwardFollowsTheLastVisitOfItsGroup) {
  for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
    for (const Accumulation accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
      const std::vector<Visit> visits = train_visits(ToyCompute(2, DType::F32), 2, accumulation);
      std::vector<std::size_t> updated;
      std::set<std::size_t> unsharded;
      std::size_t ran = 0;
      for (const Action& action : plan_actions(visits, ahead, UpdateTime::DuringBackward)) {
        if (action.kind == Kind::Run) ran = action.index;
        if (action.kind == Kind::Unshard) unsharded.insert(action.index);
        if (action.kind == Kind::Reshard) unsharded.erase(action.index);
        if (action.kind != Kind::Update) continue;
        EXPECT_FALSE(unsharded.contains(action.index)) << "group " << action.index;
        updated.push_back(action.index);
        for (std::size_t v = 0; v < visits.size(); ++v) {
          const bool contributes = std::ranges::count(visits[v].grad_groups, action.index) > 0;
          if (contributes || std::ranges::count(visits[v].groups, action.index) > 0) {
            EXPECT_LE(v, ran) << "group " << action.index;
          }
        }
      }
      EXPECT_EQ(updated, (std::vector<std::size_t>{3, 2, 1, 0})) << "in the order of backward";
    }
  }
}

TEST(PlanActions, AGatherDuringBackwardRunsNoFartherAheadOfTheUpdates) {
  for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
    const std::vector<Visit> visits = train_visits(ToyCompute(6, DType::F32), 1);
    std::size_t waits = 0;
    std::set<std::size_t> under_way;
    for (const Action& action : plan_actions(visits, ahead, UpdateTime::DuringBackward)) {
      if (action.kind == Kind::Update) under_way.insert(action.index);
      if (action.kind == Kind::WaitForUpdate) {
        EXPECT_EQ(under_way.erase(action.index), 1U) << "waits for an update that was not started";
        ++waits;
      }
      if (action.kind != Kind::Unshard) continue;
      EXPECT_LE(under_way.size(), kUpdatesBehind);
    }
    EXPECT_GT(waits, 0U);
  }
}

TEST(TimedAccesses, TellTheComputingOfEachLaneApart) {
  test::StoreRig rig({.slots = 16});
  const offload::ShardId param = rig.add(FlatLayout::kShardAlignment, TierKind::Host, DType::BF16);
  const offload::ShardId grad = rig.add(FlatLayout::kShardAlignment, TierKind::Host, DType::BF16);
  const offload::ShardId state = rig.add(FlatLayout::kShardAlignment, TierKind::Nvme, DType::F32);
  const std::vector<GroupShards> shards{{param, grad, {state}}};
  const std::vector<UpdateShards> updates{{param, offload::Access::Write, grad, {state}}};
  const std::vector<Visit> visits = {{0, 0, Direction::Backward, {0}, {0}}};
  const StepSeconds seconds{{5.0}, 1.0 / static_cast<double>(FlatLayout::kShardAlignment)};
  const auto time = UpdateTime::UnderForward;
  const auto timed =
      timed_accesses(rig.store, shards, visits, plan_actions(visits, GatherAhead::None, time), &updates, seconds, time);
  double updating = 0, running = 0;
  std::uint64_t bytes = 0;
  for (const offload::TimedAccess& access : timed) {
    EXPECT_EQ(access.lane, offload::Lane::Updates) << "weights in host memory have no page";
    updating += access.seconds;
    running += access.beside_seconds;
    bytes += access.bytes;
  }
  EXPECT_DOUBLE_EQ(updating, 1.0);
  EXPECT_DOUBLE_EQ(running, 5.0);
  EXPECT_EQ(bytes, FlatLayout::kShardAlignment * sizeof(float));
}

TEST(ScheduledAccesses, OfUpdatesDuringBackwardAreALaneBetweenTheGathers) {
  test::StoreRig rig({.slots = 16});
  std::vector<GroupShards> shards;
  std::vector<UpdateShards> updates;
  for (int g = 0; g < 2; ++g) {
    const offload::ShardId param = rig.add(FlatLayout::kShardAlignment, TierKind::Nvme, DType::BF16);
    const offload::ShardId grad = rig.add(FlatLayout::kShardAlignment, TierKind::Host, DType::BF16);
    shards.push_back({param, grad, {}});
    updates.push_back({param, offload::Access::Write, grad, {}});
  }
  const std::vector<Visit> visits = {{0, 1, Direction::Backward, {1}, {1}}, {0, 0, Direction::Backward, {0}, {0}}};
  const auto time = UpdateTime::DuringBackward;
  const auto list =
      scheduled_accesses(rig.store, shards, visits, plan_actions(visits, GatherAhead::None, time), &updates, time);
  std::vector<std::pair<std::uint32_t, offload::Lane>> order;
  for (const offload::ScheduledAccess& access : list) order.emplace_back(access.piece.shard.index, access.lane);
  const std::uint32_t first = shards[0].param.index;
  const std::uint32_t second = shards[1].param.index;
  EXPECT_EQ(order, (decltype(order){{second, offload::Lane::Gathers},
                                    {second, offload::Lane::EarlyUpdates},
                                    {first, offload::Lane::Gathers},
                                    {first, offload::Lane::EarlyUpdates}}));
}

TEST(ScheduledAccesses, AreWhatTheStoreSeesForEveryPlacement) {
  for (const TierKind param : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    for (const TierKind states : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      for (const TierKind grad : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
        for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
          for (const std::size_t micro_batches : {1, 3}) {
            SCOPED_TRACE(std::string(name_of(param)) + " " + std::string(name_of(states)) + " " +
                         std::string(name_of(grad)) + " " + std::to_string(micro_batches) +
                         (ahead == GatherAhead::One ? " ahead" : ""));
            ToyEngine engine({.param_home = param,
                              .state_home = states,
                              .grad_home = grad,
                              .dtype = DType::BF16,
                              .blocks = 1,
                              .micro_batches = micro_batches,
                              .gather_ahead = ahead});
            (void)engine.step();
            (void)engine.step();
            // Nothing was missing or too much, and every step ended where the next begins.
            if (engine.train_schedule->size() > 0) {
              (void)engine.store.acquire(engine.train_schedule->at(0).piece, offload::Access::Read);
            }
            EXPECT_EQ(engine.store.stats().off_schedule, 0U);
          }
        }
      }
    }
  }
}

TEST(ScheduledAccesses, OfAnUpdateAreOneAccessPerPieceInTheOrderOfTheWalk) {
  test::StoreRig rig({.slots = 16});
  const std::uint64_t numel = 2 * FlatLayout::kShardAlignment;
  const offload::ShardId param = rig.add(numel, TierKind::Nvme, DType::BF16);
  const offload::ShardId grad = rig.add(numel, TierKind::Host, DType::F32);
  const offload::ShardId master = rig.add(numel, TierKind::Nvme, DType::F32);
  const std::vector<UpdateShards> updates = {{param, offload::Access::Write, grad, {master}}};
  const auto list = scheduled_accesses(rig.store, {{param, grad, {master}}}, {}, {{Kind::Unshard, 0}}, &updates);
  using offload::Access;
  const std::vector<std::pair<offload::PieceId, Access>> expected = {
      {{param, 0}, Access::Read},       {{param, 1}, Access::Read},       {{param, 0}, Access::Write},
      {{master, 0}, Access::ReadWrite}, {{master, 1}, Access::ReadWrite}, {{param, 1}, Access::Write},
      {{master, 2}, Access::ReadWrite}, {{master, 3}, Access::ReadWrite}};
  ASSERT_EQ(list.size(), expected.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].piece, expected[i].first) << i;
    EXPECT_EQ(list[i].access, expected[i].second) << i;
  }
}

TEST(TimedAccesses, ComputingFollowsTheAccessesThatItNeeds) {
  test::StoreRig rig({.slots = 16});
  const std::uint64_t numel = FlatLayout::kShardAlignment;  // one page of halves, two of floats
  std::vector<GroupShards> shards;
  std::vector<UpdateShards> updates;
  for (int g = 0; g < 2; ++g) {
    const offload::ShardId param = rig.add(numel, TierKind::Nvme, DType::BF16);
    const offload::ShardId grad = rig.add(numel, TierKind::Host, DType::BF16);
    const offload::ShardId master = rig.add(numel, TierKind::Nvme, DType::F32);
    shards.push_back({param, grad, {master}});
    updates.push_back({param, offload::Access::Write, grad, {master}});
  }
  const std::vector<Visit> visits = {{0, 0, Direction::Forward, {0}, {}}, {0, 1, Direction::Backward, {1}, {}}};
  const auto list = timed_accesses(rig.store, shards, visits, plan_actions(visits, GatherAhead::One), &updates,
                                   {.visits = {5, 7}, .update_seconds_per_element = 0.5});
  // Gather, compute; gather, compute; then per group a page of the parameter and two of the state, each with its chunk.
  std::vector<double> seconds;
  for (const offload::TimedAccess& access : list) seconds.push_back(access.seconds);
  EXPECT_EQ(seconds, (std::vector<double>{5, 7, 0, 512, 512, 0, 512, 512}));
}

TEST(TimedAccesses, WhatAStepComputesBeforeItsFirstAccessFollowsItsLast) {
  test::StoreRig rig({.slots = 16});
  const offload::ShardId in_memory = rig.add(FlatLayout::kShardAlignment, TierKind::Host, DType::BF16);
  const offload::ShardId on_drive = rig.add(FlatLayout::kShardAlignment, TierKind::Nvme, DType::BF16);
  const std::vector<GroupShards> shards = {{in_memory, {}, {}}, {on_drive, {}, {}}};
  const std::vector<Visit> visits = {{0, 0, Direction::Forward, {0}, {}}, {0, 1, Direction::Forward, {1}, {}}};
  const auto list =
      timed_accesses(rig.store, shards, visits, plan_actions(visits, GatherAhead::One), nullptr, {.visits = {5, 7}});
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].seconds, 12);
}

}  // namespace
}  // namespace strata::zero
