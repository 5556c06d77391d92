// The engine on a CUDA device over the fake runtime: every transfer, wait and update goes through the sources that
// drive a GPU, late and in the order of their events, and gives the bits of the host device. Torch computes on the
// host, so this says nothing of its kernels.
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"
#include "engine/accelerator.h"
#include "engine/cuda_plugin.h"
#include "engine/engine.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fake_cuda::Control& fake() {
  static fake_cuda::Control* const control = [] {
    setenv("STRATA_CUDA_PLUGIN", STRATA_CUDA_FAKE_PLUGIN, 1);
    void* const plugin = dlopen(STRATA_CUDA_FAKE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<decltype(&strata_fake_cuda)>(dlsym(plugin, "strata_fake_cuda"))();
  }();
  return *control;
}

struct Homes {
  TierKind param, grad, optimizer;
};
constexpr Homes kHomes[] = {
    {TierKind::Device, TierKind::Device, TierKind::Device}, {TierKind::Host, TierKind::Host, TierKind::Host},
    {TierKind::Nvme, TierKind::Host, TierKind::Nvme},       {TierKind::Device, TierKind::Host, TierKind::Nvme},
    {TierKind::Nvme, TierKind::Device, TierKind::Device},   {TierKind::Nvme, TierKind::Nvme, TierKind::Nvme}};

class CudaEngine : public testing::Test {
 protected:
  CudaEngine() {
    reset(7);
    test::write_tiny_model(model());
    std::filesystem::create_directories(folder_.path() / "swap");
  }
  ~CudaEngine() override {
    EXPECT_THAT(fake().violations(), IsEmpty());
    if (lost_) return;  // a lost device frees nothing
    const fake_cuda::Alive alive = fake().alive();
    EXPECT_EQ(alive.streams + alive.events + alive.pools + alive.device_allocations + alive.pinned_regions, 0U);
  }

  // With twice the memory that the engines use: how much is measured at their start depends on it.
  static void reset(std::uint64_t seed) { fake().reset({.seed = seed, .memory_bytes = std::uint64_t{128} << 20}); }

  std::filesystem::path model() const { return folder_.path() / "model"; }
  EngineConfig config(const Homes& homes, std::optional<int> cuda_device) const {
    EngineConfig config = test::tiny_engine(model());
    config.cuda_device = cuda_device;
    config.param_home = homes.param;
    config.grad_home = homes.grad;
    config.optimizer_home = homes.optimizer;
    config.nvme_paths = {folder_.path() / "swap"};
    config.nvme_budget = std::uint64_t{64} << 20;
    config.slot_bytes = std::uint64_t{256} << 10;
    return config;
  }

  struct Run {
    std::vector<double> losses;
    std::vector<std::uint32_t> bits;
  };
  static Run run(const EngineConfig& config, int steps = 3) {
    const std::unique_ptr<Engine> engine = Engine::create(config);
    Run run;
    for (const StepSummary& step : test::train_tiny(*engine, steps)) run.losses.push_back(step.loss);
    run.bits = test::tiny_parameter_bits(*engine);
    for (std::size_t t = 0; t < offload::kTiers; ++t) {
      EXPECT_LE(engine->peak_bytes()[t], engine->memory_plan().need[t]) << "tier " << t;
    }
    return run;
  }
  static void expect_equal(const Run& cuda, const Run& host) {
    EXPECT_EQ(cuda.losses, host.losses);
    EXPECT_TRUE(cuda.bits == host.bits) << "parameters differ from those of the host device";
  }

  test::TempDir folder_;
  bool lost_ = false;
};

TEST_F(CudaEngine, TrainsToTheBitsOfTheHostDeviceWhereverItsStatesLive) {
  const Run host = run(config(kHomes[0], std::nullopt));
  ASSERT_NE(host.losses.front(), host.losses.back());
  std::uint64_t seed = 0;
  for (const Homes& homes : kHomes) {
    for (const UpdateSite site : {UpdateSite::Auto, UpdateSite::Host, UpdateSite::Streamed}) {
      SCOPED_TRACE(std::string(name_of(homes.param)) + "/" + std::string(name_of(homes.grad)) + "/" +
                   std::string(name_of(homes.optimizer)) + " site " + std::to_string(static_cast<int>(site)));
      reset(++seed);
      EngineConfig cuda = config(homes, 0);
      cuda.update_site = site;
      expect_equal(run(cuda), host);
    }
  }
  EXPECT_GT(fake().calls("cudaMemcpyAsync"), 0U);
}

TEST_F(CudaEngine, EveryEncodingOfStatesHasTheBitsOfTheHostDevice) {
  for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Lion, OptimizerKind::Sgd}) {
    for (const MasterEncoding master : {MasterEncoding::Fp32, MasterEncoding::Remainder}) {
      for (const MomentEncoding moments : {MomentEncoding::Fp32, MomentEncoding::Bf16, MomentEncoding::Block8}) {
        SCOPED_TRACE(std::string(name_of(kind)) + " " + std::string(name_of(master)) + " " +
                     std::string(name_of(moments)));
        const auto with = [&](std::optional<int> device) {
          EngineConfig one = config(kHomes[1], device);
          one.optimizer = {kind, master, moments};
          one.update_site = UpdateSite::Streamed;
          return run(one);
        };
        expect_equal(with(0), with(std::nullopt));
      }
    }
  }
}

TEST_F(CudaEngine, SeveralMicroBatchesInBothOrdersHaveTheBitsOfTheHostDevice) {
  for (const Accumulation order : {Accumulation::Horizontal, Accumulation::Vertical}) {
    for (const Homes& homes : {kHomes[0], kHomes[2]}) {
      const auto with = [&](std::optional<int> device) {
        EngineConfig one = config(homes, device);
        one.micro_batches = 3;
        one.accumulation = order;
        return run(one);
      };
      expect_equal(with(0), with(std::nullopt));
    }
  }
}

TEST_F(CudaEngine, TwoRanksHaveTheBitsOfTheHostDeviceInEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    std::vector<Run> runs;
    for (const std::optional<int> device : {std::optional<int>(), std::optional(0)}) {
      EngineConfig one = config(kHomes[1], device);
      one.zero_stage = stage;
      one.update_site = UpdateSite::Streamed;
      Run& run = runs.emplace_back();
      test::run_engines(one, 2, [&](Engine& engine) {
        const std::vector<StepSummary> steps = test::train_tiny(engine, 2);
        const std::vector<std::uint32_t> bits = test::tiny_parameter_bits(engine);
        if (engine.communicator().rank() != 0) return;
        for (const StepSummary& step : steps) run.losses.push_back(step.loss);
        run.bits = bits;
      });
    }
    expect_equal(runs[1], runs[0]);
  }
}

TEST_F(CudaEngine, RanksOnDifferentKindsOfDevicesAreNoRun) {
  test::PlainMath math;
  std::vector<std::shared_ptr<Communicator>> comms;
  for (auto& comm : comm::make_thread_ranks(2, math)) comms.push_back(std::move(comm));
  test::run_ranks(2, [&](std::size_t rank) {
    EngineConfig mine = config(kHomes[0], rank == 0 ? std::optional(0) : std::nullopt);
    mine.comm = comms[rank];
    EXPECT_THROW(Engine::create(mine), CommError);
  });
}

TEST_F(CudaEngine, GeneratesAndEvaluatesAsOnTheHost) {
  std::vector<std::vector<std::int64_t>> texts;
  std::vector<double> losses;
  for (const std::optional<int> device : {std::optional<int>(), std::optional(0)}) {
    EngineConfig one = config(kHomes[2], device);
    one.training = false;
    const std::unique_ptr<Engine> engine = Engine::create(one);
    texts.push_back(engine->generate({1, 2, 3}, 4));
    losses.push_back(engine->evaluate(test::tiny_batch(5)).loss_sum);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(CudaEngine, ARunContinuesOnTheOtherDevice) {
  const EngineConfig host = config(kHomes[1], std::nullopt);
  const EngineConfig cuda = config(kHomes[2], 0);
  const Run whole = run(host, 4);
  const std::filesystem::path states = folder_.path() / "states";
  std::filesystem::create_directories(states);
  RunState state;
  {
    const std::unique_ptr<Engine> engine = Engine::create(cuda);
    test::train_tiny(*engine, 2);
    engine->save_states(states);
    state = engine->state();
  }
  const std::unique_ptr<Engine> engine = Engine::create(host);
  engine->load_states(states, state);
  test::train_tiny(*engine, 2);
  EXPECT_TRUE(test::tiny_parameter_bits(*engine) == whole.bits);
}

TEST_F(CudaEngine, PinsWhatCopiesTouch) {
  const std::unique_ptr<Engine> engine = Engine::create(config(kHomes[1], 0));
  // Pages, and homes of parameters and gradients.
  EXPECT_GT(fake().alive().pinned_regions, 2U);
}

TEST_F(CudaEngine, ABudgetAboveWhatIsFreeIsRefusedInPlainWords) {
  fake().reset({.memory_bytes = std::uint64_t{32} << 20});
  try {
    Engine::create(config(kHomes[0], 0));
    FAIL() << "64 MiB of 32";
  } catch (const OutOfBudget& refusal) {
    EXPECT_THAT(std::string(refusal.what()), HasSubstr("strata.budgets.device asks for 64.00 MiB"));
    EXPECT_THAT(std::string(refusal.what()), HasSubstr("Fake GPU"));
    EXPECT_THAT(std::string(refusal.what()), HasSubstr("lower strata.budgets.device"));
  }
}

TEST_F(CudaEngine, WithoutADeviceItSaysWhy) {
  fake().reset({.devices = 0});
  try {
    Engine::create(config(kHomes[0], 0));
    FAIL() << "no device";
  } catch (const DeviceError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("no CUDA-capable device"));
  }
  EXPECT_EQ(cuda_devices().count, 0);
}

TEST_F(CudaEngine, TorchOutOfMemoryOnItsStreamDoesNotFit) {
  const auto accelerator = make_accelerator(config(kHomes[0], 0), {.budget_bytes = 1 << 20, .torch_bytes = 1 << 19});
  const auto stream = accelerator->create_library_stream("compute");
  stream->launch([] {
    throw c10::OutOfMemoryError({"here", "file", 1}, "CUDA out of memory. Tried to allocate 9 MiB.");
  });
  try {
    stream->record().wait();
    ADD_FAILURE() << "torch had no memory";
  } catch (const OutOfBudget& refusal) {
    EXPECT_EQ(refusal.have_bytes(), std::uint64_t{1} << 19);
    EXPECT_THAT(std::string(refusal.what()), HasSubstr("than the 512.00 KiB that the plan assumes"));
  }
}

TEST_F(CudaEngine, ALostDeviceEndsTheRunWithItsFirstCause) {
  const std::unique_ptr<Engine> engine = Engine::create(config(kHomes[0], 0));
  test::train_tiny(*engine, 1);
  engine->wait();
  lost_ = true;
  fake().fail_kernel(2, 700);  // cudaErrorIllegalAddress
  std::string first;
  try {
    test::train_tiny(*engine, 2);
    engine->wait();
    ADD_FAILURE() << "a kernel failed";
  } catch (const DeviceError& error) {
    first = error.what();
  }
  EXPECT_THAT(first, HasSubstr("illegal memory access"));
  try {
    test::train_tiny(*engine, 1);
    ADD_FAILURE() << "the device is lost";
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()), first);
  }
}

}  // namespace
}  // namespace strata::engine
