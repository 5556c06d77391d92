#include "zero/grad_reducer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/local_communicator.h"
#include "support/plain_math.h"
#include "support/store_rig.h"

namespace strata::zero {
namespace {

using offload::TierKind;

constexpr std::size_t kSlotBytes = ShardMath::kNormBlock * sizeof(float);
constexpr std::size_t kNumel = 2 * ShardMath::kNormBlock + 3000;  // three pieces in fp32, two in bf16

// A reducer for one group; gradient i of a step holds (i + 1) * pattern.
struct Rig {
  Rig(TierKind home, DType dtype, DType home_dtype, std::size_t contributions, bool with_staging = true,
      HostDeviceOptions::Mode mode = HostDeviceOptions::Mode::Adversarial, std::size_t slot_bytes = kSlotBytes,
      std::size_t summed_first = 1,
      GradReducer::Options::NotFinite not_finite = GradReducer::Options::NotFinite::Counts)
      : tiers({.slots = offload::ShardStore::kMinSlots, .slot_bytes = slot_bytes, .device = {.mode = mode, .seed = 4}}),
        dtype_(dtype),
        layout({"g", {{"p", {static_cast<std::int64_t>(kNumel)}}}}, 1),
        grad(tiers.add(layout.shard_numel(), home, home_dtype, offload::ShardKind::Grad)),
        slots(tiers.device, MemoryTag::Grad, std::vector<SlotClass>{{layout.numel() * bytes_of(dtype), 2}}),
        accumulators(tiers.device, MemoryTag::Grad, std::vector<SlotClass>{{layout.shard_numel() * sizeof(float), 1}}),
        staging(allocate_host(tiers.host, 2 * slot_bytes, MemoryTag::Staging), slot_bytes),
        reducer({&layout}, {{.param = {}, .grad = grad, .states = {}}},
                {dtype, {contributions}, {summed_first}, &accumulators, not_finite}, tiers.store, slots,
                with_staging ? &staging : nullptr, comm, {*copy_in, *copy_out, *comm_stream, *compute}, adder, math,
                math, counters) {}

  static float pattern(std::size_t i) { return static_cast<float>(i % 7) - 3; }

  void contribute(float factor) {
    const DeviceSlots::Lease lease = reducer.acquire(0);
    compute->launch([this, factor, data = lease.data] {
      const TensorSpan flat{data, dtype_, layout.numel()};
      for (std::size_t i = 0; i < flat.numel; ++i) {
        test::store_element(flat, i, i < kNumel ? factor * pattern(i) : 0.0F);
      }
    });
    reducer.reduce(0, lease);
  }
  void expect_home(float factor) {
    std::vector<std::byte> bytes = test::read_shard(tiers.store, grad);
    const TensorSpan home{bytes.data(), tiers.store.spec(grad).dtype, layout.shard_numel()};
    for (std::size_t i = 0; i < home.numel; ++i) {
      ASSERT_EQ(test::load_element(home, i), i < kNumel ? factor * pattern(i) : 0.0F) << "element " << i;
    }
  }

  test::StoreRig tiers;
  DType dtype_;
  FlatLayout layout;
  offload::ShardId grad;
  DeviceSlots slots;
  DeviceSlots accumulators;
  SlotPool staging;
  test::PlainMath math;
  LocalCommunicator comm;
  LinkCounters counters;
  ThreadExecutor adder{"adder"};
  std::unique_ptr<Stream> copy_in = tiers.device.create_stream("copy-in");
  std::unique_ptr<Stream> copy_out = tiers.device.create_stream("copy-out");
  std::unique_ptr<Stream> comm_stream = tiers.device.create_stream("comm");
  std::unique_ptr<Stream> compute = tiers.device.create_stream("compute");
  GradReducer reducer;
};

class EachGradHome : public ::testing::TestWithParam<TierKind> {};
INSTANTIATE_TEST_SUITE_P(GradReducers, EachGradHome,
                         ::testing::Values(TierKind::Device, TierKind::Host, TierKind::Nvme),
                         [](const auto& param_info) { return std::string(name_of(param_info.param)); });

TEST_P(EachGradHome, OneContributionArrivesUnchangedAndTheNextStepOverwritesIt) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Rig rig(GetParam(), dtype, dtype, 1, /*with_staging=*/false);
    rig.contribute(1);
    rig.reducer.finish();
    rig.expect_home(1);
    rig.contribute(5);
    rig.reducer.finish();
    rig.expect_home(5);
  }
}

TEST_P(EachGradHome, SeveralContributionsAreAdded) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Rig rig(GetParam(), dtype, DType::F32, 3);
    for (int step = 0; step < 2; ++step) {
      for (const float factor : {1.0F, 2.0F, 4.0F}) rig.contribute(factor);
      rig.reducer.finish();
      rig.expect_home(7);
    }
  }
}

TEST_P(EachGradHome, ContributionsSummedOnTheDeviceArriveAsTheirSumAndLaterOnesAreAdded) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::size_t contributions : {3, 5}) {
      Rig rig(GetParam(), dtype, DType::F32, contributions, contributions > 3, HostDeviceOptions::Mode::Adversarial,
              kSlotBytes, /*summed_first=*/3);
      for (int step = 0; step < 2; ++step) {
        for (std::size_t i = 0; i < contributions; ++i) rig.contribute(1.0F);
        rig.reducer.finish();
        rig.expect_home(static_cast<float>(contributions));
      }
    }
  }
}

TEST_P(EachGradHome, InANarrowHomeEveryAdditionRoundsButForThoseOfTheDevice) {
  // 1/512 of a value is lost beside it in bf16, eight times; their sum in fp32 is not.
  for (const bool on_device : {false, true}) {
    Rig rig(GetParam(), DType::BF16, DType::BF16, 9, /*with_staging=*/true, HostDeviceOptions::Mode::Adversarial,
            kSlotBytes, /*summed_first=*/on_device ? 9 : 1);
    for (int step = 0; step < 2; ++step) {
      rig.contribute(1);
      for (int i = 0; i < 8; ++i) rig.contribute(1.0F / 512);
      rig.reducer.finish();
      rig.expect_home(on_device ? 1 + 8.0F / 512 : 1);
    }
  }
}

TEST(GradReducer, ASumOfTheDeviceTravelsOnceInFp32) {
  Rig rig(TierKind::Host, DType::BF16, DType::F32, 4, true, HostDeviceOptions::Mode::Normal, kSlotBytes,
          /*summed_first=*/3);
  for (int i = 0; i < 4; ++i) rig.contribute(1);
  rig.reducer.finish();
  EXPECT_EQ(rig.counters.to_host, rig.layout.numel() * (4 + 2));
}

TEST(GradReducer, CountsTheBytesThatLeaveTheDevice) {
  Rig host(TierKind::Host, DType::BF16, DType::F32, 2);
  host.contribute(1);
  host.contribute(2);
  host.reducer.finish();
  EXPECT_EQ(host.counters.to_host, 2 * host.layout.numel() * 2);
  Rig device(TierKind::Device, DType::BF16, DType::F32, 1);
  device.contribute(1);
  device.reducer.finish();
  EXPECT_EQ(device.counters.to_host, 0U);
}

TEST(GradReducer, TheNormHasTheSameBitsOnEveryHome) {
  std::vector<double> sums;
  for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    Rig rig(home, DType::F32, DType::F32, 1);
    rig.contribute(0.1F);
    rig.reducer.finish();
    sums.push_back(rig.reducer.sum_of_squares());
  }
  double expected = 0;
  for (std::size_t first = 0; first < kNumel; first += ShardMath::kNormBlock) {
    double block = 0;
    for (std::size_t i = first; i < std::min(first + ShardMath::kNormBlock, kNumel); ++i) {
      const double value = 0.1F * Rig::pattern(i);
      block += value * value;
    }
    expected += block;
  }
  EXPECT_EQ(sums, std::vector<double>(3, expected));
}

TEST(GradReducer, TheNormRefusesSlotsThatCutItsBlocks) {
  Rig rig(TierKind::Host, DType::F32, DType::F32, 1, true, HostDeviceOptions::Mode::Normal, kSlotBytes + kPageBytes);
  rig.contribute(1);
  rig.reducer.finish();
  EXPECT_THROW(rig.reducer.sum_of_squares(), ContractViolation);
}

TEST_P(EachGradHome, AGradientIsCompleteWithItsLastContribution) {
  Rig rig(GetParam(), DType::BF16, DType::F32, 2);
  for (int step = 0; step < 2; ++step) {
    rig.contribute(1);
    EXPECT_THROW((void)rig.reducer.complete(0), ContractViolation);
    rig.contribute(2);
    rig.reducer.complete(0).wait();
    rig.expect_home(3);
    rig.reducer.finish();
    EXPECT_GT(rig.reducer.sum_of_squares(), 0);
  }
}

TEST_P(EachGradHome, AGradientThatIsNotFiniteFailsItsGroupByNameWhereUpdatesBegin) {
  using NotFinite = GradReducer::Options::NotFinite;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Rig strict(GetParam(), dtype, DType::F32, 1, true, HostDeviceOptions::Mode::Adversarial, kSlotBytes, 1,
               NotFinite::Fails);
    strict.contribute(1);
    strict.reducer.finish();
    strict.contribute(kInfinity);
    EXPECT_THROW(strict.reducer.complete(0).wait(), DataError);
    try {
      strict.reducer.finish();
      FAIL() << "not noticed";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("the gradient of g is not finite"), std::string::npos) << error.what();
    }
    Rig counting(GetParam(), dtype, DType::F32, 1);
    counting.contribute(kInfinity);
    counting.reducer.finish();
    EXPECT_FALSE(std::isfinite(counting.reducer.sum_of_squares()));
  }
}

TEST(GradReducer, AMissingContributionIsRefused) {
  Rig rig(TierKind::Host, DType::F32, DType::F32, 2);
  rig.contribute(1);
  EXPECT_THROW(rig.reducer.finish(), ContractViolation);
}

TEST(GradReducer, AContributionTooManyIsRefused) {
  Rig rig(TierKind::Host, DType::F32, DType::F32, 1);
  rig.contribute(1);
  EXPECT_THROW(rig.contribute(1), ContractViolation);
}

TEST(GradReducer, AFailureOfComputeReachesFinish) {
  for (const TierKind home : {TierKind::Device, TierKind::Host}) {
    Rig rig(home, DType::BF16, DType::F32, 2);
    rig.contribute(1);
    rig.compute->launch([] { throw DeviceError("no more"); });
    // The third piece of the second contribution waits for the staging slot of the first: it may learn of it already.
    EXPECT_THROW(
        {
          rig.contribute(2);
          rig.reducer.finish();
        },
        DeviceError);
  }
}

TEST(GradReducer, NeedsStagingWhereSomethingIsAddedOrConverted) {
  EXPECT_FALSE(GradReducer::needs_staging(DType::F32, DType::F32, 1));
  EXPECT_TRUE(GradReducer::needs_staging(DType::F32, DType::F32, 2));
  EXPECT_TRUE(GradReducer::needs_staging(DType::BF16, DType::F32, 1));
  EXPECT_FALSE(GradReducer::needs_staging(DType::BF16, DType::F32, 3, /*summed_first=*/3));
  EXPECT_TRUE(GradReducer::needs_staging(DType::BF16, DType::F32, 6, /*summed_first=*/3));
}

}  // namespace
}  // namespace strata::zero
