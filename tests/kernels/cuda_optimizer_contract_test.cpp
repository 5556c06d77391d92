// The CUDA optimizer with its grids run on the host. What this cannot show: device arithmetic, and accesses as the
// hardware performs them.
#include <cuda_runtime_api.h>

#include "contract/shard_optimizer_contract.h"
#include "cuda/cuda_optimizer.h"
#include "cuda/current_stream.h"
#include "kernels/fake_runtime.h"
#include "support/optimizer_configs.h"

namespace strata::test {
namespace {

std::vector<ShardOptimizerCase> cuda_cases() {
  std::vector<ShardOptimizerCase> cases;
  for (const OptimizerConfig& config : optimizer_configs()) {
    cases.push_back({text_of(config), config, [config](Parallel&) { return cuda::make_cuda_optimizer(config); }});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(CudaOptimizer, ShardOptimizerContract, ::testing::ValuesIn(cuda_cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(CudaOptimizer, QueuesOneLaunchForAllSegmentsOnTheCurrentStream) {
  const std::vector<Segment> segments = {{"a", {}, 0, 100, true}, {"b", {}, 100, 7, false}, {"c", {}, 512, 300, true}};
  const Shard shard(DType::BF16, DType::BF16, 900);
  int stream = 0;
  const cuda::CurrentStream scope(reinterpret_cast<cudaStream_t>(&stream));
  const int before = fake_runtime().launches;

  const Event event = cuda::make_cuda_optimizer({})->step(ordinary_step(), shard.views(segments));

  EXPECT_EQ(fake_runtime().launches, before + 1);
  EXPECT_EQ(fake_runtime().last_stream, &stream);
  EXPECT_TRUE(event.ready());
}

TEST(CudaOptimizer, QueuesNothingWithoutElementsOrSegments) {
  const Shard none(DType::BF16, DType::BF16, 0), padding(DType::BF16, DType::BF16, 9);
  const std::vector<Segment> empty = {whole(0)};
  const int before = fake_runtime().launches;

  cuda::make_cuda_optimizer({})->step(ordinary_step(), none.views(empty));
  cuda::make_cuda_optimizer({})->step(ordinary_step(), padding.views({}));

  EXPECT_EQ(fake_runtime().launches, before);
}

TEST(CudaOptimizer, SaysWhichLaunchFailedAndWhy) {
  const Shard shard(DType::BF16, DType::BF16, 9);
  const std::vector<Segment> segments = {whole(9)};
  fake_runtime().launch_error = cudaErrorLaunchFailure;

  try {
    cuda::make_cuda_optimizer({})->step(ordinary_step(), shard.views(segments));
    ADD_FAILURE() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "strata_cuda_update_fp32 failed: cudaErrorLaunchFailure, unspecified launch failure; nothing can run "
                 "on this GPU until the program is started again");
  }
  fake_runtime().launch_error = cudaSuccess;
}

TEST(CurrentStream, IsTheInnermostOfTheThread) {
  int outer = 0, inner = 0;
  const auto stream = [](int& value) { return reinterpret_cast<cudaStream_t>(&value); };
  EXPECT_EQ(cuda::current_stream(), nullptr);
  {
    const cuda::CurrentStream first(stream(outer));
    {
      const cuda::CurrentStream second(stream(inner));
      EXPECT_EQ(cuda::current_stream(), stream(inner));
    }
    EXPECT_EQ(cuda::current_stream(), stream(outer));
  }
  EXPECT_EQ(cuda::current_stream(), nullptr);
}

}  // namespace
}  // namespace strata::test
