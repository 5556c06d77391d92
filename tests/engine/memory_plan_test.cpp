#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/sizes_only.h"
#include "offload/shard_store.h"
#include "support/test_seed.h"

namespace strata::engine {
namespace {

using namespace strata::literals;
using offload::TierKind;
using test::SizesOnly;

constexpr std::uint64_t kGranule = 256_KiB;

// 16 Mi elements: 32 MiB of 16-bit parameters, 192 MiB of optimizer states.
const SizesOnly& model() {
  static const SizesOnly sizes(4, 3 << 20, 2 << 20, SizesOnly::Head::Own);
  return sizes;
}

PlanRequest training_request(PerTier budgets) {
  PlanRequest request;
  request.compute = &model();
  request.states = {{"master", DType::F32}, {"exp_avg", DType::F32}, {"exp_avg_sq", DType::F32}};
  request.activation_bytes = 10_MiB;
  request.budgets = budgets;
  return request;
}

PlanRequest accumulating_request(const zero::LayerCompute& compute, std::size_t micro_batches) {
  PlanRequest request = training_request({200_MiB, 400_MiB, 0});
  request.compute = &compute;
  request.micro_batches = micro_batches;
  request.open_micro_batch_bytes = 1_MiB;
  request.param = TierKind::Host;
  request.grad = TierKind::Host;
  request.optimizer = TierKind::Host;
  return request;
}

// A device of its own behind a link as fast as the processor's update.
constexpr zero::UpdateCosts kDeviceCosts{
    .host_update = 2e-9, .device_update = 1e-11, .to_device = 5e-11, .to_host = 5e-11};
constexpr zero::UpdateCosts kSharedCores{.host_update = 2e-9,
                                         .device_update = 2e-9,
                                         .to_device = 5e-11,
                                         .to_host = 5e-11,
                                         .cores = zero::UpdateCosts::Cores::Shared};

// The same model for two and for three ranks, whose rows are padded to the norm's blocks.
const SizesOnly& model_of(std::size_t world) {
  static const SizesOnly two(4, 3 << 20, 2 << 20, SizesOnly::Head::Tied, 2);
  static const SizesOnly three(4, 3 << 20, 2 << 20, SizesOnly::Head::Own, 3);
  return world == 1 ? model() : world == 2 ? two : three;
}

// Budgets from far too small to ample; a third of them without a drive. One rank to three, in every stage.
PlanRequest random_request(std::mt19937_64& random) {
  const auto some = [&](std::uint64_t below) { return random() % below; };
  PlanRequest request = training_request({some(400_MiB), some(400_MiB), some(3) == 0 ? 0 : 1_MiB + some(400_MiB)});
  request.micro_batches = 1 + some(3);
  request.open_micro_batch_bytes = some(4_MiB);
  request.graph_bytes = some(30_MiB);
  if (some(4) == 0) request.slot_bytes = 1 + some(2_MiB);
  request.device_behind_link = some(2) == 0;
  request.update_site = static_cast<UpdateSite>(some(4));
  if (some(4) == 0) request.optimizer_device_share = static_cast<double>(some(100)) / 100;
  if (some(2) == 0) request.update_costs = kDeviceCosts;
  request.shape.ranks = request.shape.nodes = 1 + some(3);
  request.compute = &model_of(request.shape.ranks);
  request.division.stage = static_cast<int>(some(4));
  request.division.rank = some(request.shape.ranks);
  if (some(4) == 0) request.division.whole_below = some(4 << 20);
  if (some(4) == 0) request.accumulation = zero::Accumulation::Vertical;
  return request;
}

std::optional<MemoryPlan> plan_or_nothing(const PlanRequest& request) {
  try {
    return make_plan(request);
  } catch (const OutOfBudget&) {
    return std::nullopt;
  }
}

TierKind tier_named(const std::string& name) {
  for (const TierKind tier : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    if (name == offload::name_of(tier)) return tier;
  }
  ADD_FAILURE() << "no tier is called " << name;
  return TierKind::Device;
}

// What a refusal recommends, read as a user would copy it.
PlanRequest as_recommended(const PlanRequest& refused, const std::string& message) {
  unsigned long long mib[3] = {0, 0, 0};
  const std::size_t budgets = message.find("strata.budgets: {");
  const std::size_t homes = message.find("strata.placement: {");
  EXPECT_NE(budgets, std::string::npos) << message;
  EXPECT_NE(homes, std::string::npos) << message;
  EXPECT_GE(std::sscanf(message.c_str() + budgets, "strata.budgets: {device: %lluMiB, host: %lluMiB, nvme: %lluMiB",
                        &mib[0], &mib[1], &mib[2]),
            2)
      << message;
  char param[16] = "", grad[16] = "", optimizer[16] = "";
  EXPECT_EQ(
      std::sscanf(message.c_str() + homes, "strata.placement: {param: %15[a-z], grad: %15[a-z], optimizer: %15[a-z]}",
                  param, grad, optimizer),
      3)
      << message;
  PlanRequest request = refused;
  request.budgets = {mib[0] * 1_MiB, mib[1] * 1_MiB, mib[2] * 1_MiB};
  request.param = tier_named(param);
  request.grad = tier_named(grad);
  request.optimizer = tier_named(optimizer);
  return request;
}

std::string refusal_of(const PlanRequest& request) {
  try {
    make_plan(request);
  } catch (const OutOfBudget& refusal) {
    return refusal.what();
  }
  ADD_FAILURE() << "the request was not refused";
  return {};
}

PerTier bytes_of_row(const MemoryPlan& plan, const std::string& what) {
  for (const PlanRow& row : plan.rows) {
    if (row.what == what) return row.bytes;
  }
  return {};
}

TEST(MemoryPlan, KeepsEverythingOnADeviceThatHoldsIt) {
  const MemoryPlan plan = make_plan(training_request({1_GiB, 1_GiB, 1_GiB}));
  EXPECT_EQ(plan.placement, (Placement{TierKind::Device, TierKind::Device, TierKind::Device}));
  EXPECT_EQ(plan.nvme_read_per_step + plan.nvme_written_per_step + plan.link_per_step, 0u);
}

TEST(MemoryPlan, MovesTheStatesToTheHostBeforeItUsesADrive) {
  const MemoryPlan plan = make_plan(training_request({120_MiB, 1_GiB, 1_GiB}));
  EXPECT_EQ(plan.placement.optimizer, TierKind::Host);
  EXPECT_EQ(plan.need[2], 0u);
}

TEST(MemoryPlan, MovesTheStatesToADriveWhenNothingElseHoldsThem) {
  const MemoryPlan plan = make_plan(training_request({150_MiB, 60_MiB, 1_GiB}));
  EXPECT_EQ(plan.placement.optimizer, TierKind::Nvme);
  EXPECT_EQ(plan.need[2] + bytes_of_row(plan, "optimizer states")[0], 192_MiB);
  EXPECT_GT(plan.nvme_read_per_step, 0u);
}

TEST(MemoryPlan, LeavesNoFeasiblePlacementThatMovesLess) {
  const std::uint64_t seed = test::test_seed(11);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int compared = 0;
  for (int i = 0; i < 40; ++i) {
    PlanRequest request = random_request(random);
    const std::optional<MemoryPlan> chosen = plan_or_nothing(request);
    const std::uint64_t nvme = chosen ? chosen->nvme_read_per_step + chosen->nvme_written_per_step : 0;
    for (const TierKind param : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      for (const TierKind grad : {TierKind::Device, TierKind::Host}) {
        for (const TierKind optimizer : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
          const bool nvme_asked = param == TierKind::Nvme || optimizer == TierKind::Nvme;
          if (nvme_asked && request.budgets[2] == 0) continue;
          if (param == TierKind::Nvme && request.shape.ranks > 1 && request.division.stage < 3) continue;
          request.param = param;
          request.grad = grad;
          request.optimizer = optimizer;
          const std::optional<MemoryPlan> other = plan_or_nothing(request);
          if (!other) continue;
          ASSERT_TRUE(chosen) << "refused, but asked for its homes it fits:\n" << to_table(*other);
          // A gather ahead is worth some traffic.
          if (other->ahead == zero::GatherAhead::None && chosen->ahead == zero::GatherAhead::One) continue;
          const std::uint64_t other_nvme = other->nvme_read_per_step + other->nvme_written_per_step;
          const bool less = other_nvme <= nvme && other->link_per_step <= chosen->link_per_step &&
                            other_nvme + other->link_per_step < nvme + chosen->link_per_step;
          EXPECT_FALSE(less) << "chosen:\n" << to_table(*chosen) << "moves less:\n" << to_table(*other);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(MemoryPlan, HonoursTheHomesThatWereAskedFor) {
  for (const TierKind param : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    for (const TierKind grad : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      for (const TierKind optimizer : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
        PlanRequest request = training_request({1_GiB, 1_GiB, 1_GiB});
        request.param = param;
        request.grad = grad;
        request.optimizer = optimizer;
        EXPECT_EQ(make_plan(request).placement, (Placement{param, grad, optimizer}));
      }
    }
  }
}

TEST(MemoryPlan, FitsItsBudgetsAndSumsItsRows) {
  const std::uint64_t seed = test::test_seed(12);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int planned = 0;
  for (int i = 0; i < 300; ++i) {
    const PlanRequest request = random_request(random);
    const std::optional<MemoryPlan> plan = plan_or_nothing(request);
    if (!plan) continue;
    ++planned;
    PerTier sums{};
    for (const PlanRow& row : plan->rows) {
      for (std::size_t t = 0; t < offload::kTiers; ++t) sums[t] += row.bytes[t];
    }
    EXPECT_EQ(sums, plan->need);
    EXPECT_EQ(plan->budgets, request.budgets);
    for (std::size_t t = 0; t < offload::kTiers; ++t) EXPECT_LE(plan->need[t], request.budgets[t]) << "tier " << t;
  }
  EXPECT_GT(planned, 100);
}

TEST(MemoryPlan, HasSlotsForOneUpdateOnTheGridOfTheNorm) {
  const std::uint64_t seed = test::test_seed(13);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    const PlanRequest request = random_request(random);
    const std::optional<MemoryPlan> plan = plan_or_nothing(request);
    if (!plan) continue;
    EXPECT_GE(plan->slots, offload::ShardStore::kMinSlots);
    EXPECT_GT(plan->slot_bytes, 0u);
    EXPECT_EQ(plan->slot_bytes % kGranule, 0u);
    EXPECT_LE(plan->look_ahead_bytes, plan->slots * plan->slot_bytes / 2);
    if (request.slot_bytes) {
      EXPECT_EQ(plan->slot_bytes, align_up(*request.slot_bytes, kGranule));
    }
  }
}

TEST(MemoryPlan, RecommendsBudgetsThatAreAcceptedAndCannotShrink) {
  const std::uint64_t seed = test::test_seed(14);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const PlanRequest request = random_request(random);
    if (plan_or_nothing(request)) continue;
    ++refused;
    const std::string message = refusal_of(request);
    const PlanRequest recommended = as_recommended(request, message);
    EXPECT_TRUE(plan_or_nothing(recommended)) << message;
    for (const std::size_t tier : {0, 1}) {
      PlanRequest less = recommended;
      less.budgets[tier] -= 1_MiB;
      EXPECT_FALSE(plan_or_nothing(less)) << "a MiB less on tier " << tier << " would do too: " << message;
    }
  }
  EXPECT_GT(refused, 30);
}

// A small model accumulates vertically in the same MiB of the device, and needs no staging in host memory for it.
TEST(MemoryPlan, RecommendsTheLeastOfBothOrdersOfMicroBatches) {
  const SizesOnly small(2, 1000, 1000, SizesOnly::Head::Own);
  PlanRequest request = accumulating_request(small, 2);
  request.open_micro_batch_bytes = 1_KiB;
  for (const std::uint64_t activations : {100_KiB, 300_KiB, 500_KiB, 700_KiB, 900_KiB}) {
    request.activation_bytes = activations;
    for (std::size_t slots = 0; slots < 4; ++slots) {
      request.slot_bytes = (1 + slots) * kGranule;
      request.budgets = {1, 64_MiB, 0};  // only the device is short, where horizontal needs less
      PlanRequest less = as_recommended(request, refusal_of(request));
      EXPECT_TRUE(plan_or_nothing(less));
      less.budgets[1] -= 1_MiB;
      EXPECT_FALSE(plan_or_nothing(less)) << refusal_of(request);
    }
  }
}

TEST(MemoryPlan, RecommendsTheHomesThatWereAskedFor) {
  PlanRequest request = training_request({20_MiB, 20_MiB, 20_MiB});
  request.param = TierKind::Host;
  request.optimizer = TierKind::Nvme;
  const PlanRequest recommended = as_recommended(request, refusal_of(request));
  EXPECT_EQ(recommended.param, TierKind::Host);
  EXPECT_EQ(recommended.optimizer, TierKind::Nvme);
}

TEST(MemoryPlan, RefusesWithMoreNeededThanThereIs) {
  try {
    make_plan(training_request({1_MiB, 1_MiB, 0}));
    FAIL() << "accepted";
  } catch (const OutOfBudget& refusal) {
    EXPECT_GT(refusal.need_bytes(), refusal.have_bytes());
    EXPECT_NE(std::string(refusal.what()).find("strata.nvme.paths"), std::string::npos) << refusal.what();
  }
}

TEST(MemoryPlan, AcceptsItsOwnNeedsAsBudgets) {
  const std::uint64_t seed = test::test_seed(15);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    PlanRequest request = random_request(random);
    const std::optional<MemoryPlan> plan = plan_or_nothing(request);
    if (!plan) continue;
    request.budgets = plan->need;
    EXPECT_TRUE(plan_or_nothing(request)) << to_table(*plan);
  }
}

PlanRequest on_host(PerTier budgets, UpdateSite site) {
  PlanRequest request = training_request(budgets);
  request.param = request.grad = request.optimizer = TierKind::Host;
  request.update_site = site;
  return request;
}

// 13 GB of parameters in pieces of 256 KiB are 50,000 copies, each with an event, for every pass over the model.
TEST(MemoryPlan, CopiesOverALinkAreLargeWhereMemoryIsLeft) {
  PlanRequest request = training_request({60_MiB, 2_GiB, 0});
  request.param = request.grad = request.optimizer = TierKind::Host;
  request.update_site = UpdateSite::Host;
  EXPECT_EQ(make_plan(request).slot_bytes, kGranule) << "beside the device the caches hold small pieces";
  request.device_behind_link = true;

  const MemoryPlan plan = make_plan(request);

  EXPECT_EQ(plan.slot_bytes, 16_MiB);
  EXPECT_LE(plan.need[1], 2_GiB);
  request.budgets[1] = plan.need[1] - plan.slots * (plan.slot_bytes - kGranule);
  EXPECT_LT(make_plan(request).slot_bytes, 16_MiB) << "they give way to what must be there";
}

TEST(MemoryPlanUpdates, StreamedOnesHaveStagingForThreeChunksOnTheDevice) {
  const MemoryPlan plan = make_plan(on_host({200_MiB, 400_MiB, 0}, UpdateSite::Streamed));
  // Of bf16 weights and gradients half a page each, of three fp32 states a whole one.
  EXPECT_EQ(plan.updates.staging_bytes, 4 * plan.slot_bytes);
  EXPECT_EQ(bytes_of_row(plan, "update staging")[0], 3 * 4 * plan.slot_bytes);
  EXPECT_EQ(plan.updates.device_share, 1);
  EXPECT_EQ(plan.updates.streamed_share, 1);
  const MemoryPlan host = make_plan(on_host({200_MiB, 400_MiB, 0}, UpdateSite::Host));
  EXPECT_EQ(bytes_of_row(host, "update staging")[0], 0U);
  EXPECT_EQ(host.updates.device_share, 0);
  EXPECT_EQ(host.need[0] + 12 * plan.slot_bytes, plan.need[0]);
  // Weights, gradients and states of 16 Mi elements go there and all but gradients back.
  EXPECT_EQ(plan.link_per_step - host.link_per_step, (14 + 14) * (16_MiB));
}

TEST(MemoryPlanUpdates, ARefusalSaysWhatStreamingTakes) {
  const PlanRequest too_small = on_host({1_MiB, 400_MiB, 0}, UpdateSite::Auto);
  PlanRequest request = as_recommended(too_small, refusal_of(too_small));
  EXPECT_TRUE(plan_or_nothing(request));
  request.update_site = UpdateSite::Streamed;
  const std::string message = refusal_of(request);
  EXPECT_NE(message.find("update staging"), std::string::npos) << message;
  EXPECT_NE(message.find("strata.update_site: device nothing is streamed, which saves up to 3.00 MiB"),
            std::string::npos)
      << message;
  EXPECT_TRUE(plan_or_nothing(as_recommended(request, message)));
}

TEST(MemoryPlanUpdates, AreStreamedInPartWhereThatEndsSoonerAndTheStagingFits) {
  PlanRequest request = on_host({200_MiB, 400_MiB, 0}, UpdateSite::Auto);
  request.update_costs = kDeviceCosts;
  const MemoryPlan plan = make_plan(request);
  EXPECT_EQ(plan.updates.site, UpdateSite::Auto);
  // 14 bytes each way in 0.7 ns beside 2 ns: three of four.
  EXPECT_NEAR(plan.updates.streamed_share, 0.74, 0.05);
  request.budgets[0] = plan.need[0] - bytes_of_row(plan, "update staging")[0];
  EXPECT_EQ(make_plan(request).updates.streamed_share, 0) << "no room for staging";
  request = on_host({200_MiB, 400_MiB, 0}, UpdateSite::Auto);
  request.update_costs = kSharedCores;
  EXPECT_EQ(make_plan(request).updates.device_share, 0) << "copies on the same cores never pay";
}

TEST(MemoryPlanUpdates, SpareDeviceMemoryTakesGraphsBeforeStates) {
  PlanRequest request = training_request({150_MiB, 60_MiB, 1_GiB});
  const MemoryPlan without = make_plan(request);
  ASSERT_EQ(without.placement.optimizer, TierKind::Nvme);
  EXPECT_EQ(bytes_of_row(without, "optimizer states")[0], 60_MiB);
  request.graph_bytes = 10_MiB;
  const MemoryPlan plan = make_plan(request);
  EXPECT_EQ(plan.kept_graphs, 4U);
  EXPECT_LT(bytes_of_row(plan, "optimizer states")[0], 60_MiB);
  EXPECT_GT(plan.nvme_read_per_step, without.nvme_read_per_step);
  request.optimizer = TierKind::Nvme;
  EXPECT_EQ(bytes_of_row(make_plan(request), "optimizer states")[0], 0U) << "the drive was asked for";
}

TEST(MemoryPlanUpdates, StatesThatFitNoOtherTierLieOnTheDevice) {
  PlanRequest request = training_request({150_MiB, 60_MiB, 150_MiB});
  const MemoryPlan plan = make_plan(request);
  EXPECT_EQ(plan.placement.optimizer, TierKind::Nvme);
  EXPECT_EQ(plan.need[2], 192_MiB - bytes_of_row(plan, "optimizer states")[0]);
  request.update_site = UpdateSite::Host;
  EXPECT_FALSE(plan_or_nothing(request));
}

TEST(MemoryPlanUpdates, AShareOnTheDeviceIsWholeGroupsInTheirOrder) {
  PlanRequest request = training_request({200_MiB, 100_MiB, 1_GiB});
  request.optimizer = TierKind::Nvme;
  for (const auto& [share, mib] : {std::pair{0.0, 0}, {0.12, 0}, {0.125, 24}, {0.3125, 60}, {0.45, 84}, {1.0, 192}}) {
    SCOPED_TRACE(share);
    request.optimizer_device_share = share;
    if (mib == 192) request.budgets[0] = 400_MiB;
    const MemoryPlan plan = make_plan(request);
    EXPECT_EQ(bytes_of_row(plan, "optimizer states")[0], static_cast<std::uint64_t>(mib) * 1_MiB);
    EXPECT_EQ(plan.need[2], 192_MiB - static_cast<std::uint64_t>(mib) * 1_MiB);
    EXPECT_NEAR(plan.updates.device_share, mib / 192.0, 1e-9);
    EXPECT_EQ(plan.updates.streamed_share, 0);
  }
}

// F flat elements: 16 bytes each are 2 of parameters, g of gradients, 12 of states. Where all of a rank's contributions
// are one, stage 1 keeps no more of the gradients than stage 2.
TEST(MemoryPlanRanks, KeepTheBytesOfTheFormulas) {
  for (const std::size_t world : {1, 2, 3, 4, 64}) {
    const SizesOnly sizes(4, 3 << 20, 2 << 20, SizesOnly::Head::Own, world);
    double flat = 0, params = 0;
    for (const zero::FlatLayout& layout : sizes.layouts()) {
      flat += static_cast<double>(layout.numel());
      params += static_cast<double>(layout.param_numel());
    }
    for (int stage = 0; stage <= 3; ++stage) {
      for (const std::size_t micro_batches : {1, 3}) {
        for (const auto accumulation : {zero::Accumulation::Horizontal, zero::Accumulation::Vertical}) {
          PlanRequest request = accumulating_request(sizes, micro_batches);
          request.budgets = {4_GiB, 4_GiB, 0};
          request.shape.ranks = request.shape.nodes = world;
          request.division.stage = stage;
          request.accumulation = accumulation;
          const MemoryPlan plan = make_plan(request);
          const double n = static_cast<double>(world);
          const double g = micro_batches > 1 ? 4 : 2;
          const bool one_sum = micro_batches == 1 || accumulation == zero::Accumulation::Vertical;
          const double param = stage == 3 ? 2 / n : 2;
          const double grad = stage >= 2 || (stage == 1 && one_sum) ? g / n : g;
          const double states = stage == 0 ? 12 : 12 / n;
          EXPECT_DOUBLE_EQ(static_cast<double>(plan.states_bytes), flat * (param + grad + states))
              << "stage " << stage << ", " << world << " ranks, " << micro_batches << " micro-batches";
          EXPECT_DOUBLE_EQ(static_cast<double>(plan.whole_states_bytes), params * (14 + g));
          EXPECT_DOUBLE_EQ(plan.padding, 1 - params / flat);
        }
      }
    }
  }
}

// The published shares of 7 B on 64 ranks: 4 + 12/64, 2 + 14/64 and 16/64 of 16.
TEST(MemoryPlanRanks, ReproduceThePublishedSharesOn64Ranks) {
  const SizesOnly sizes(32, 202'383'360, 131'072'000, SizesOnly::Head::Own, 64);
  const auto percent = [&](int stage) {
    PlanRequest request = accumulating_request(sizes, 2);
    request.accumulate_in_fp32 = false;
    request.accumulation = zero::Accumulation::Horizontal;
    request.budgets = {64_GiB, 256_GiB, 0};
    request.shape.ranks = request.shape.nodes = 64;
    request.division.stage = stage;
    const MemoryPlan plan = make_plan(request);
    return 100 * static_cast<double>(plan.states_bytes) * (1 - plan.padding) /
           static_cast<double>(plan.whole_states_bytes);
  };
  EXPECT_NEAR(percent(0), 100, 0.05);
  EXPECT_NEAR(percent(1), 26.2, 0.05);
  EXPECT_NEAR(percent(2), 13.9, 0.05);
  EXPECT_NEAR(percent(3), 1.6, 0.05);
}

TEST(MemoryPlan, RefusesADriveThatIsNotThere) {
  PlanRequest request = training_request({1_GiB, 1_GiB, 0});
  request.optimizer = TierKind::Nvme;
  EXPECT_THROW(make_plan(request), ConfigError);
}

// Bytes of a row on one tier; 0 where there is no such row.
std::uint64_t row_bytes(const MemoryPlan& plan, const std::string& what, TierKind tier) {
  for (const PlanRow& row : plan.rows) {
    if (row.what == what) return row.bytes[static_cast<std::size_t>(tier)];
  }
  return 0;
}

TEST(MemoryPlan, GradientsGoToTheDriveOnlyWhereMemoryForcesThem) {
  PlanRequest request = training_request({1_GiB, 1_GiB, 1_GiB});
  request.param = request.optimizer = TierKind::Nvme;
  request.slot_bytes = 256 << 10;
  request.recomputed_layers = 1000;
  const MemoryPlan roomy = make_plan(request);
  EXPECT_NE(roomy.placement.grad, TierKind::Nvme);
  request.grad = TierKind::Nvme;
  const MemoryPlan asked = make_plan(request);
  EXPECT_EQ(asked.placement.grad, TierKind::Nvme);
  const std::uint64_t grads = row_bytes(asked, "gradients", TierKind::Nvme);
  ASSERT_GT(grads, 0U);
  // The least that does without a home for them in memory, and nothing to spare for one.
  request.budgets = {asked.need[0], asked.need[1] - (asked.slots - asked.pins_at_once) * asked.slot_bytes, 1_GiB};
  ASSERT_LT(request.budgets[1], grads);
  request.grad = std::nullopt;
  const MemoryPlan forced = make_plan(request);
  EXPECT_EQ(forced.placement.grad, TierKind::Nvme) << to_table(forced);
  EXPECT_GT(forced.nvme_written_per_step, grads);
}

TEST(MemoryPlan, GradientsThatAreUpdatedEarlyNeedTwoHomes) {
  PlanRequest request = training_request({1_GiB, 1_GiB, 1_GiB});
  request.grad = TierKind::Host;
  const MemoryPlan all = make_plan(request);
  EXPECT_TRUE(all.grad_homes.empty());
  request.early_updates = true;
  const MemoryPlan two = make_plan(request);
  const std::vector<zero::FlatLayout>& layouts = request.compute->layouts();
  ASSERT_EQ(two.grad_homes.size(), layouts.size());
  std::uint64_t owned = 0;
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    if (two.grad_homes[g] == g) owned += layouts[g].shard_numel() * bytes_of(two.grad_type);
  }
  EXPECT_EQ(row_bytes(two, "gradients", TierKind::Host), owned);
  EXPECT_LT(owned, row_bytes(all, "gradients", TierKind::Host));
  request.grad = TierKind::Nvme;
  EXPECT_TRUE(make_plan(request).grad_homes.empty()) << "pages of two shards cannot share a home";
}

TEST(MemoryPlan, HasNoGradientsAndNoStatesWithoutTraining) {
  PlanRequest request = training_request({60_MiB, 20_MiB, 0});
  request.training = false;
  request.states.clear();
  const MemoryPlan plan = make_plan(request);
  EXPECT_TRUE(plan.grad_slots.empty());
  for (const PlanRow& row : plan.rows) {
    EXPECT_EQ(row.what.find("grad"), std::string::npos) << row.what;
    EXPECT_EQ(row.what.find("optimizer"), std::string::npos) << row.what;
  }
}

TEST(MemoryPlan, SumsGradientsOfSeveralMicroBatchesInFp32) {
  PlanRequest request = training_request({1_GiB, 1_GiB, 0});
  EXPECT_EQ(make_plan(request).grad_type, DType::BF16);
  request.micro_batches = 2;
  EXPECT_EQ(make_plan(request).grad_type, DType::F32);
}

TEST(MemoryPlan, TakesAllMicroBatchesThroughALayerWhereThatMovesLess) {
  const MemoryPlan chosen = make_plan(accumulating_request(model(), 4));
  EXPECT_EQ(chosen.accumulation, zero::Accumulation::Vertical);
  EXPECT_FALSE(chosen.grad_sum_slots.empty());
  EXPECT_EQ(chosen.grad_staging_slots, 0U) << "nothing is added on the host";
  PlanRequest horizontal = accumulating_request(model(), 4);
  horizontal.accumulation = zero::Accumulation::Horizontal;
  EXPECT_LT(chosen.link_per_step, make_plan(horizontal).link_per_step / 2);
}

TEST(MemoryPlan, CountsTheActivationsOfMicroBatchesThatAreOpenTogether) {
  const auto activations = [](std::size_t micro_batches, zero::Accumulation accumulation) {
    PlanRequest request = accumulating_request(model(), micro_batches);
    request.accumulation = accumulation;
    const MemoryPlan plan = make_plan(request);
    for (const PlanRow& row : plan.rows) {
      if (row.what == "activations") return row.bytes[0];
    }
    return std::uint64_t{0};
  };
  EXPECT_EQ(activations(5, zero::Accumulation::Horizontal), 10_MiB);
  EXPECT_EQ(activations(1, zero::Accumulation::Vertical), 10_MiB);
  EXPECT_EQ(activations(5, zero::Accumulation::Vertical), 14_MiB);
}

TEST(MemoryPlan, StaysHorizontalWhereVerticalDoesNotFit) {
  PlanRequest request = accumulating_request(model(), 4);
  request.open_micro_batch_bytes = 1_GiB;
  EXPECT_EQ(make_plan(request).accumulation, zero::Accumulation::Horizontal);
  request.accumulation = zero::Accumulation::Vertical;
  EXPECT_THROW(make_plan(request), OutOfBudget);
}

TEST(MemoryPlan, LeavesTheOrderOfTiedGradientsAloneUnlessAsked) {
  const SizesOnly tied(4, 3 << 20, 2 << 20, SizesOnly::Head::Tied);
  PlanRequest request = accumulating_request(tied, 4);
  EXPECT_EQ(make_plan(request).accumulation, zero::Accumulation::Horizontal);
  request.accumulation = zero::Accumulation::Vertical;
  const MemoryPlan asked = make_plan(request);
  EXPECT_EQ(asked.accumulation, zero::Accumulation::Vertical);
  EXPECT_GT(asked.grad_staging_slots, 0U) << "the embedding's contributions are added to the head's";
}

TEST(MemoryPlan, IsHorizontalWhereNothingIsSaved) {
  PlanRequest request = training_request({1_GiB, 1_GiB, 0});
  request.micro_batches = 4;
  EXPECT_EQ(make_plan(request).accumulation, zero::Accumulation::Horizontal) << "all is on the device";
  EXPECT_EQ(make_plan(accumulating_request(model(), 1)).accumulation, zero::Accumulation::Horizontal);
}

TEST(MemoryPlan, KeepsTheGraphsThatTheDeviceBudgetHasRoomFor) {
  PlanRequest request = accumulating_request(model(), 1);
  request.graph_bytes = 20_MiB;
  const std::uint64_t least = make_plan(request).need[0] - make_plan(request).kept_graphs * 20_MiB;
  for (const std::uint64_t spare : {0_MiB, 19_MiB, 20_MiB, 41_MiB, 79_MiB, 80_MiB, 500_MiB}) {
    request.budgets[0] = least + spare;
    const MemoryPlan plan = make_plan(request);
    EXPECT_EQ(plan.kept_graphs, std::min<std::uint64_t>(spare / 20_MiB, 4)) << "of four layers";
    EXPECT_EQ(plan.need[0], least + plan.kept_graphs * 20_MiB);
  }
}

TEST(MemoryPlan, CountsTheGraphsOfEveryOpenMicroBatch) {
  PlanRequest request = accumulating_request(model(), 3);
  request.graph_bytes = 5_MiB;
  request.recomputed_layers = 3;
  for (const auto& [accumulation, bytes] :
       {std::pair{zero::Accumulation::Horizontal, 5_MiB}, std::pair{zero::Accumulation::Vertical, 15_MiB}}) {
    request.accumulation = accumulation;
    const MemoryPlan plan = make_plan(request);
    const auto row = std::ranges::find(plan.rows, std::string("kept graphs"), &PlanRow::what);
    ASSERT_NE(row, plan.rows.end());
    EXPECT_EQ(row->bytes[0], bytes);
  }
}

TEST(MemoryPlan, RecomputesAsManyLayersAsAsked) {
  PlanRequest request = accumulating_request(model(), 1);
  request.graph_bytes = 20_MiB;
  request.budgets[0] = 400_MiB;
  for (const std::uint64_t layers : {0, 1, 4, 5, 1000}) {
    request.recomputed_layers = layers;
    EXPECT_EQ(make_plan(request).kept_graphs, 4 - std::min<std::uint64_t>(layers, 4));
  }
  request.recomputed_layers = 0;
  request.budgets[0] = 60_MiB;
  EXPECT_THROW(make_plan(request), OutOfBudget);
}

TEST(MemoryPlan, PrintsOneRowPerUseAndTheSums) {
  const MemoryPlan plan = make_plan(training_request({150_MiB, 60_MiB, 1_GiB}));
  const std::string table = to_table(plan);
  for (const PlanRow& row : plan.rows) EXPECT_NE(table.find(row.what), std::string::npos) << table;
  EXPECT_NE(table.find("needed"), std::string::npos) << table;
  EXPECT_NE(table.find("budget"), std::string::npos) << table;
}

}  // namespace
}  // namespace strata::engine
