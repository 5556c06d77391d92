#include "core/local_communicator.h"

#include <gtest/gtest.h>

#include <array>

#include "core/bytes.h"
#include "core/host_device.h"

namespace strata {
namespace {

using namespace literals;

TEST(LocalCommunicator, IsRankZeroOfOne) {
  const LocalCommunicator communicator;

  EXPECT_EQ(communicator.rank(), 0U);
  EXPECT_EQ(communicator.world(), 1U);
}

TEST(LocalCommunicator, EveryCollectiveLeavesTheValuesAsTheyAre) {
  HostDevice device(1_MiB);
  const auto stream = device.create_stream("comm");
  LocalCommunicator communicator;
  std::array<float, 4> values = {1, 2, 3, 4};
  const TensorSpan full{reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()};
  std::array<double, 2> sums = {5, 6};

  communicator.all_gather(*stream, full);
  communicator.reduce_scatter(*stream, full);
  communicator.all_to_all(*stream, full);
  communicator.all_reduce_sum(sums);
  communicator.all_gather_values(sums);
  communicator.broadcast({full.data, full.bytes()}, 0);
  communicator.barrier();
  stream->record().wait();

  EXPECT_EQ(values, (std::array<float, 4>{1, 2, 3, 4}));
  EXPECT_EQ(sums, (std::array<double, 2>{5, 6}));
}

}  // namespace
}  // namespace strata
