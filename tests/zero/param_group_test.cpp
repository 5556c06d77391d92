#include "zero/param_group.h"

#include <gtest/gtest.h>

#include <future>

#include "core/error.h"
#include "core/local_communicator.h"
#include "support/manual_executor.h"
#include "support/store_rig.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::StoreRig;

// What is bound, and when, in the order of the compute stream.
class RecordingBinding final : public StorageBinding {
 public:
  void bind(std::byte* data) override { history.push_back(data); }
  void unbind() override { history.push_back(nullptr); }
  std::vector<std::byte*> history;
};

// Rank 1 of 2: fills row 0 as the other rank would.
class SecondOfTwo final : public Communicator {
 public:
  std::size_t rank() const override { return 1; }
  std::size_t world() const override { return 2; }
  void all_gather(Stream& stream, TensorSpan full) override {
    stream.launch([full] { test::stamp({full.data, full.bytes() / 2}, 555); });
  }
  void reduce_scatter(Stream&, TensorSpan) override {}
  void all_to_all(Stream&, TensorSpan) override {}
  void all_reduce_sum(std::span<double>) override {}
  void all_gather_values(std::span<double>) override {}
  void broadcast(std::span<std::byte>, std::size_t) override {}
  void barrier() override {}
  void abort(std::exception_ptr) override {}
  CommStats stats() const override { return {}; }
};

// A group of one parameter with its own streams, driven without a layer runner.
struct Rig {
  explicit Rig(TierKind home, std::unique_ptr<Communicator> communicator = std::make_unique<LocalCommunicator>(),
               test::StoreRigOptions options = {})
      : tiers(options),
        comm(std::move(communicator)),
        layout({"g", {{"p", {100, 50}}}}, comm->world()),
        param(tiers.add(layout.shard_numel(), home, DType::BF16, offload::ShardKind::Param)),
        slots(tiers.device, MemoryTag::Gather,
              std::vector<SlotClass>{{layout.numel() * bytes_of(DType::BF16), home == TierKind::Device ? 1U : 2U}}),
        group(layout, DType::BF16,
              {.param = param, .grad = {}, .states = {}, .first = comm->rank() * layout.shard_numel()}, binding,
              tiers.store, slots, *comm, {*copy_in, *copy_out, *comm_stream, *compute}, counters) {}

  void fill(std::uint64_t value) {
    for (std::uint32_t p = 0; p < tiers.store.pieces(param); ++p) {
      const offload::Pin pin = tiers.store.acquire({param, p}, offload::Access::Write);
      test::stamp(pin.wait(), value + p);
    }
    tiers.store.drain_uncached();
  }
  // Whether this rank's row of the bound buffer, seen by the compute stream, holds what fill() wrote.
  bool sees(std::uint64_t value) {
    bool same = true;
    compute->launch([&] {
      const std::byte* row = binding.history.back() + comm->rank() * layout.shard_numel() * 2;
      for (std::uint32_t p = 0; p < tiers.store.pieces(param); ++p) {
        const std::size_t bytes = tiers.store.range({param, p}).numel * 2;
        same = same && test::has_stamp({row + tiers.store.range({param, p}).first * 2, bytes}, value + p);
      }
    });
    compute->record().wait();
    return same;
  }

  StoreRig tiers;
  std::unique_ptr<Communicator> comm;
  FlatLayout layout;
  offload::ShardId param;
  RecordingBinding binding;
  DeviceSlots slots;
  std::unique_ptr<Stream> copy_in = tiers.device.create_stream("copy-in");
  std::unique_ptr<Stream> copy_out = tiers.device.create_stream("copy-out");
  std::unique_ptr<Stream> comm_stream = tiers.device.create_stream("comm");
  std::unique_ptr<Stream> compute = tiers.device.create_stream("compute");
  LinkCounters counters;
  ParamGroup group;
};

class EachParamHome : public ::testing::TestWithParam<TierKind> {};
INSTANTIATE_TEST_SUITE_P(ParamGroups, EachParamHome,
                         ::testing::Values(TierKind::Device, TierKind::Host, TierKind::Nvme),
                         [](const auto& param_info) { return std::string(name_of(param_info.param)); });

TEST_P(EachParamHome, ComputeSeesTheFullParametersBetweenWaitAndReshard) {
  Rig rig(
      GetParam(), std::make_unique<LocalCommunicator>(),
      {.slots = offload::ShardStore::kMinSlots, .device = {.mode = HostDeviceOptions::Mode::Adversarial, .seed = 3}});
  for (std::uint64_t round = 1; round <= 4; ++round) {
    rig.fill(round * 1000);
    EXPECT_EQ(rig.group.state(), ParamGroup::State::Sharded);
    rig.group.unshard();
    EXPECT_EQ(rig.group.state(), ParamGroup::State::Gathering);
    rig.group.wait_for_unshard();
    EXPECT_EQ(rig.group.state(), ParamGroup::State::Unsharded);
    EXPECT_TRUE(rig.sees(round * 1000));
    rig.group.reshard();
    rig.compute->record().wait();
    EXPECT_EQ(rig.binding.history.back(), nullptr);
  }
  EXPECT_EQ(rig.group.gathers(), 4U);
}

TEST(ParamGroup, CopiesEachPieceAsSoonAsThatPieceIsUpdated) {
  Rig rig(TierKind::Nvme);
  rig.fill(7);
  std::vector<EventSource> pieces(rig.tiers.store.pieces(rig.param));
  ASSERT_EQ(pieces.size(), 3U);
  std::vector<Event> updated;
  for (EventSource& piece : pieces) {
    piece.submit();
    updated.push_back(piece.event());
  }
  EventSource all;
  all.submit();
  rig.group.update_until(all.event(), updated);

  std::future<void> unsharded = std::async(std::launch::async, [&] { rig.group.unshard(); });
  for (EventSource& piece : pieces) piece.complete();

  unsharded.get();  // though the states of the last piece may still be written
  rig.group.wait_for_unshard();
  EXPECT_TRUE(rig.sees(7));
  all.complete();
}

TEST(ParamGroup, ThrowsWhatTheUpdateOfAPieceFailedWith) {
  Rig rig(TierKind::Nvme);
  rig.fill(7);
  std::vector<EventSource> pieces(rig.tiers.store.pieces(rig.param));
  std::vector<Event> updated;
  for (EventSource& piece : pieces) updated.push_back(piece.event());
  pieces.front().complete();
  pieces[1].fail(std::make_exception_ptr(ConfigError("injected")));
  rig.group.update_until(Event(), updated);

  EXPECT_THROW(rig.group.unshard(), ConfigError);

  pieces[2].complete();
}

TEST(ParamGroup, AtHomeOnTheDeviceItViewsTheHomeAndMovesNothing) {
  Rig rig(TierKind::Device);
  rig.fill(1);
  rig.group.unshard();
  rig.group.wait_for_unshard();
  rig.compute->record().wait();
  EXPECT_EQ(rig.binding.history.back(), rig.tiers.store.device_address(rig.param));
  EXPECT_EQ(rig.counters.to_device, 0U);
  rig.group.reshard();
}

TEST(ParamGroup, CountsTheBytesOfItsShardPerGather) {
  Rig rig(TierKind::Host);
  rig.fill(1);
  for (int i = 0; i < 2; ++i) {
    rig.group.unshard();
    rig.group.wait_for_unshard();
    rig.group.reshard();
  }
  EXPECT_EQ(rig.counters.to_device, 2 * rig.group.full_bytes());
  EXPECT_EQ(rig.group.full_bytes(), rig.layout.numel() * 2);
}

TEST_P(EachParamHome, ARanksShardGoesToItsRowAndTheOthersAreGathered) {
  Rig rig(GetParam(), std::make_unique<SecondOfTwo>());
  rig.fill(7);
  rig.group.unshard();
  rig.group.wait_for_unshard();
  EXPECT_TRUE(rig.sees(7));
  const std::span<std::byte> full(rig.binding.history.back(), rig.group.full_bytes());
  EXPECT_TRUE(test::has_stamp(full.first(full.size() / 2), 555));
  EXPECT_NE(full.data(), rig.tiers.store.device_address(rig.param)) << "a shard is not the whole";
  rig.group.reshard();
}

TEST(ParamGroup, ABufferIsRefilledOnlyWhenComputeIsDoneWithIt) {
  Rig rig(TierKind::Host, std::make_unique<LocalCommunicator>(),
          {.device = {.mode = HostDeviceOptions::Mode::Adversarial, .seed = 8}});
  rig.fill(1000);
  std::vector<int> seen(8, 0);
  for (std::uint64_t i = 0; i < seen.size(); ++i) {
    rig.group.unshard();
    rig.group.wait_for_unshard();
    rig.compute->launch([&rig, &slot = seen[i]] {
      slot = test::has_stamp({rig.binding.history.back(), kPageBytes}, 1000) ? 1 : -1;
    });
    rig.group.reshard();
  }
  rig.compute->record().wait();
  EXPECT_EQ(seen, std::vector<int>(8, 1));
}

TEST(ParamGroup, DoesNotWaitForTheDevice) {
  Rig rig(TierKind::Host);
  rig.fill(1);
  EventSource gate;
  gate.submit();
  rig.copy_in->wait(gate.event());
  rig.group.unshard();
  rig.group.wait_for_unshard();
  rig.group.reshard();  // all of it is queued behind the gate
  const Event end = rig.compute->record();
  EXPECT_FALSE(end.ready());
  gate.complete();
  end.wait();
  EXPECT_EQ(rig.binding.history.size(), 2U);
}

TEST(ParamGroup, RefusesCallsInTheWrongState) {
  Rig rig(TierKind::Host);
  rig.fill(1);
  EXPECT_THROW(rig.group.wait_for_unshard(), ContractViolation);
  EXPECT_THROW(rig.group.reshard(), ContractViolation);
  rig.group.unshard();
  EXPECT_THROW(rig.group.unshard(), ContractViolation);
  EXPECT_THROW(rig.group.reshard(), ContractViolation);
  rig.group.wait_for_unshard();
  EXPECT_THROW(rig.group.wait_for_unshard(), ContractViolation);
  rig.group.reshard();
}

TEST(ParamGroup, AFailedReadFailsWhatComputeDoesNext) {
  Rig rig(TierKind::Nvme);
  rig.tiers.blobs.fail_read(0);
  const auto gather = [&] {
    rig.group.unshard();  // may learn of it already, when it acquires the next page
    rig.group.wait_for_unshard();
    rig.compute->record().wait();
  };
  EXPECT_THROW(gather(), IoError);
  EXPECT_TRUE(rig.binding.history.empty()) << "nothing is bound to a buffer that was not filled";
}

}  // namespace
}  // namespace strata::zero
