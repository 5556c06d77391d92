// Ranks with a GPU each, from their job to its end, over the fake runtime and a fake of NCCL.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>

#include "cli/rank_job.h"
#include "comm/fake_nccl.h"
#include "core/error.h"
#include "engine/cuda_plugin.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/free_port.h"
#include "support/run_ranks.h"
#include "support/watchdog.h"

namespace strata::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kRanks = 2;

class GpuJobs : public ::testing::Test {
 protected:
  // Before the program looks for the plug-in, which it does once.
  static void SetUpTestSuite() { setenv("STRATA_CUDA_PLUGIN", STRATA_FAKE_GPU_PLUGIN, 1); }

  GpuJobs()
      : cuda_(*of_plugin<fake_cuda::Control* (*)()>("strata_fake_cuda")()),
        nccl_(*of_plugin<FakeNccl* (*)()>("strata_fake_nccl")()) {
    cuda_.reset({.seed = 5, .devices = static_cast<int>(kRanks)});
    nccl_.reset();
  }
  ~GpuJobs() override {
    EXPECT_THAT(cuda_.violations(), IsEmpty());
    EXPECT_THAT(nccl_.violations(), IsEmpty());
  }

  // Each rank's work in a job with its GPU.
  void run(const std::function<int(std::size_t rank, engine::EngineConfig& config)>& work) {
    run_ranks(kRanks, [&](std::size_t rank) {
      comm::RankInfo info;
      info.rank = info.local_rank = rank;
      info.world = info.local_world = kRanks;
      info.master_port = port_;
      cli::RankJob job(info, engine::StrataConfig{});
      codes_.at(rank) = job.run([&] {
        engine::EngineConfig config;
        config.cuda_device = 0;
        job.join(config);
        return work(rank, config);
      });
    });
  }

  // Sums [2, 1024] floats over ranks on the GPU of `config`; the first element of this rank's row.
  static float sum_on_gpu(std::size_t rank, const engine::EngineConfig& config) {
    constexpr std::size_t kNumel = 2048;
    const auto gpu = engine::open_cuda({.device = *config.cuda_device, .budget_bytes = 1 << 20});
    const auto stream = gpu->device().create_stream("comm");
    const Buffer memory = gpu->device().allocate(kNumel * sizeof(float), MemoryTag::Gather);
    const TensorSpan full{memory.data(), DType::F32, kNumel};
    std::fill_n(full.as<float>(), kNumel, rank == 0 ? 1.0F : 2.0F);  // the fake's memory is the host's
    config.comm->reduce_scatter(*stream, full);
    stream->record().wait();
    return full.as<float>()[rank * kNumel / 2];
  }

  std::array<int, kRanks> codes_{-1, -1};
  fake_cuda::Control& cuda_;
  FakeNccl& nccl_;

 private:
  template <typename Function>
  static Function of_plugin(const char* name) {
    return reinterpret_cast<Function>(engine::cuda_plugin_symbol(name));
  }

  const Watchdog watchdog_{"ranks with a GPU each"};
  const std::uint16_t port_ = free_port();
};

TEST_F(GpuJobs, TakeTheGpuOfTheirNumberSumOnItAndShutDown) {
  run([&](std::size_t rank, engine::EngineConfig& config) {
    EXPECT_EQ(config.cuda_device, static_cast<int>(rank));
    EXPECT_EQ(sum_on_gpu(rank, config), 3.0F);
    EXPECT_EQ(config.communicator_bytes, 0U) << "staging lies on the GPU";
    return 0;
  });

  EXPECT_THAT(codes_, ElementsAre(0, 0));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(nccl_.events(nccl_.only_group(), rank),
                ElementsAre("connect", "all_gather", "exchange", "exchange", "shutdown"));
  }
}

TEST_F(GpuJobs, InWhichARankFailsEndByForce) {
  try {
    run([&](std::size_t rank, engine::EngineConfig& config) {
      if (rank == 1) throw DataError("the data is bad");
      config.comm->barrier();
      return 0;
    });
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 1 failed first: the data is bad");
  }
  for (const int rank : {0, 1}) EXPECT_EQ(nccl_.count(nccl_.only_group(), rank, "shutdown"), 0U);
  EXPECT_EQ(nccl_.count(nccl_.only_group(), 0, "abort"), 1U);
}

}  // namespace
}  // namespace strata::test
