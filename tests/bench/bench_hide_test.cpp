#include "bench/bench_hide.h"

#include <gtest/gtest.h>

#include "bench/hide_forecast.h"
#include "core/error.h"

namespace strata::bench {
namespace {

const OptimizerConfig kFp32{};
const OptimizerConfig kNarrow{.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8};
constexpr double kNarrowBytes = 4 + 2 * 4.0 / 256;  // 2 + 1 + 1, and two scales for 256 elements

// A billion parameters, and a machine on which nothing but what a test sets is slow or short.
const ModelShape kModel{.parameters = 1e9, .first_group = 0, .largest_group = 0};
Machine endless() {
  return {.flops = 1e12,
          .dram = 1e15,
          .link = 1e15,
          .drive_read = 1e15,
          .drive_write = 1e15,
          .gpu_bytes = 0,
          .ram_bytes = 1e15,
          .gpu_reserve = 0,
          .ram_reserve = 0};
}

TEST(HideForecast, ComputeIsEightOperationsPerParameterAndTokenAndSixWithoutRecomputation) {
  const double forward = forward_seconds(endless(), kModel, 1000);
  EXPECT_DOUBLE_EQ(forward, 2.0);
  EXPECT_DOUBLE_EQ(forward + backward_seconds(endless(), kModel, {.recompute = true}, 1000), 8.0);
  EXPECT_DOUBLE_EQ(forward + backward_seconds(endless(), kModel, {.recompute = false}, 1000), 6.0);
}

TEST(HideForecast, AnUpdateOnTheCpuMovesStatesTwiceGradientAndWeight) {
  const auto memory = [](const OptimizerConfig& optimizer) {
    const auto found = forecast(endless(), kModel, {.optimizer = optimizer, .states = StatesAt::Ram});
    return found->forward.dram - 2 /* the gather */;
  };
  EXPECT_DOUBLE_EQ(memory(kFp32), 28);
  EXPECT_DOUBLE_EQ(memory({.master = MasterEncoding::Remainder}), 26);
  EXPECT_DOUBLE_EQ(memory({.moments = MomentEncoding::Bf16}), 20);
  EXPECT_DOUBLE_EQ(memory({.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16}), 18);
  EXPECT_DOUBLE_EQ(memory(kNarrow), 2 * kNarrowBytes + 6);
}

TEST(HideForecast, WithEverythingOnTheDriveAndNothingCachedOneVisitReadsAndWritesOnce) {
  Machine machine = endless();
  for (const Clipping clipping : {Clipping::Exact, Clipping::None}) {
    Arrangement arrangement{.optimizer = kFp32, .weights = WeightsAt::Nvme, .clipping = clipping};
    machine.ram_bytes = ram_needed(machine, kModel, arrangement);
    const auto fp32 = forecast(machine, kModel, arrangement);
    EXPECT_DOUBLE_EQ(fp32->cached, 0);
    EXPECT_DOUBLE_EQ(fp32->forward.written + fp32->backward.written, 14);
    // The forward takes its weights from the update with clipping, from the drive without.
    EXPECT_DOUBLE_EQ(fp32->forward.read + fp32->backward.read, clipping == Clipping::Exact ? 14 : 16);
    arrangement.optimizer = kNarrow;
    const auto narrow = forecast(machine, kModel, arrangement);
    EXPECT_DOUBLE_EQ(narrow->forward.read + narrow->backward.read, kNarrowBytes + 4);
    EXPECT_DOUBLE_EQ(narrow->forward.written + narrow->backward.written, kNarrowBytes + 2);
  }
}

TEST(HideForecast, RamThatIsLeftKeepsThatShareOfTheStates) {
  Machine machine = endless();
  const Arrangement arrangement{.optimizer = kFp32};
  machine.ram_bytes = (2 + 2 + 3) * 1e9;  // weights, gradients, and a quarter of the states
  const auto found = forecast(machine, kModel, arrangement);
  EXPECT_DOUBLE_EQ(found->cached, 0.25);
  EXPECT_DOUBLE_EQ(found->forward.read, 9);
  EXPECT_DOUBLE_EQ(found->forward.written, 9);
}

TEST(HideForecast, WhatDoesNotFitInRamHasNone) {
  Machine machine = endless();
  machine.ram_bytes = 15.9e9;
  Arrangement arrangement{.optimizer = kFp32, .states = StatesAt::Ram};
  EXPECT_DOUBLE_EQ(ram_needed(machine, kModel, arrangement), 16e9);
  EXPECT_FALSE(forecast(machine, kModel, arrangement).has_value());
  arrangement.clipping = Clipping::None;  // gradients live until their update
  EXPECT_TRUE(forecast(machine, kModel, arrangement).has_value());
  machine.ram_bytes = 3.9e9;
  EXPECT_FALSE(forecast(machine, kModel, {.optimizer = kFp32}).has_value()) << "weights and gradients alone are more";
}

TEST(HideForecast, StatesThatAreStreamedCrossTheLinkBothWays) {
  Arrangement arrangement{.optimizer = kFp32, .states = StatesAt::Ram, .site = Site::Streamed};
  const auto clipped = forecast(endless(), kModel, arrangement);
  EXPECT_DOUBLE_EQ(clipped->forward.to_device, 12 + 2 + 2);  // states, gradient, the gather
  EXPECT_DOUBLE_EQ(clipped->forward.to_host, 12 + 2);        // states, new weight
  EXPECT_DOUBLE_EQ(clipped->backward.to_host, 2);
  arrangement.clipping = Clipping::None;
  const auto free = forecast(endless(), kModel, arrangement);
  EXPECT_DOUBLE_EQ(free->backward.to_device, 12 + 2) << "the gradient never leaves the device";
  EXPECT_DOUBLE_EQ(free->backward.to_host, 12 + 2);
  EXPECT_DOUBLE_EQ(free->forward.to_host, 0);
}

TEST(HideForecast, SpareDeviceMemoryTakesItsShareOfTheStates) {
  Machine machine = endless();
  machine.gpu_bytes = 5e9;
  machine.gpu_reserve = 2e9;
  const auto found = forecast(machine, kModel, {.optimizer = kFp32, .states = StatesAt::Ram, .site = Site::Resident});
  EXPECT_DOUBLE_EQ(found->resident, 0.25);
  EXPECT_DOUBLE_EQ(found->forward.dram, 2 + 0.75 * 28 + 0.25 * 4);
}

TEST(HideForecast, AStepIsTheSlowerOfComputingAndTransfersInEachPhaseAndTheTail) {
  Machine machine = endless();
  machine.dram = 30e9;  // forward and update: 30 bytes a parameter
  ModelShape model = kModel;
  const Arrangement arrangement{.optimizer = kFp32, .states = StatesAt::Ram};
  const auto found = forecast(machine, model, arrangement);
  EXPECT_DOUBLE_EQ(step_seconds(machine, model, arrangement, *found, 100), 1.0 + 0.6);
  EXPECT_DOUBLE_EQ(step_seconds(machine, model, arrangement, *found, 1000), 2.0 + 6.0);
  EXPECT_EQ(phases(machine, model, arrangement, *found, 100)[0].binding, "memory");
  EXPECT_EQ(phases(machine, model, arrangement, *found, 100)[1].binding, "compute");
  model.first_group = 1e8;
  const auto tail = forecast(machine, model, arrangement);
  EXPECT_DOUBLE_EQ(step_seconds(machine, model, arrangement, *tail, 100), 1.0 + 0.6 + 0.1 * 28 / 30);
}

TEST(HideForecast, AHalfDuplexDriveReadsAndWritesInTurn) {
  Machine machine = endless();
  machine.drive_read = 6e9;
  machine.drive_write = 3e9;
  machine.ram_bytes = 4e9;  // weights and gradients
  const Arrangement arrangement{.optimizer = kFp32};
  EXPECT_DOUBLE_EQ(forecast(machine, kModel, arrangement)->update_seconds, 4.0);
  machine.half_duplex = true;
  EXPECT_DOUBLE_EQ(forecast(machine, kModel, arrangement)->update_seconds, 6.0);
}

TEST(HideForecast, TokensThatHideAreTheFewestWithinTenPercent) {
  Machine machine = endless();
  machine.dram = 30e9;
  const Arrangement arrangement{.optimizer = kFp32, .states = StatesAt::Ram};
  const auto found = forecast(machine, kModel, arrangement);
  // 1 + 0.006 T <= 1.1 * 0.008 T from T = 357.2 on.
  EXPECT_EQ(tokens_that_hide(machine, kModel, arrangement, *found), 358U);
}

TEST(BenchHide, HasARowForEveryEncodingHomeSiteAndClipping) {
  const nlohmann::json result = run_hide_bench({});
  EXPECT_EQ(result.at("rows").size(), 6U * 4 * 3 * 2);
  for (const nlohmann::json& row : result.at("rows")) EXPECT_EQ(row.contains("tokens"), row.at("fits").get<bool>());
  const std::string text = format_hide_bench(result);
  EXPECT_NE(text.find("not a measurement"), std::string::npos);
  EXPECT_NE(text.find("does not fit"), std::string::npos) << "fp32 states of 7B are 81 GB";
}

TEST(BenchHide, RefusesARateThatIsNotPositive) {
  HideBenchOptions options;
  options.machine.drive_write = 0;
  EXPECT_THROW((void)run_hide_bench(options), ConfigError);
}

}  // namespace
}  // namespace strata::bench
