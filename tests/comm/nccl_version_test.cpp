#include "comm/nccl_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::test {
namespace {

using comm::NcclVersion;
using ::testing::HasSubstr;

TEST(NcclVersion, IsReadAsTorchAndNcclSayIt) {
  const NcclVersion torch = comm::version_from_torch(std::uint64_t{2} << 32 | 28 << 16 | 9);
  EXPECT_EQ(torch.major, 2U);
  EXPECT_EQ(torch.minor, 28U);
  const NcclVersion nccl = comm::version_from_nccl(22809);
  EXPECT_EQ(nccl.major, 2U);
  EXPECT_EQ(nccl.minor, 28U);
}

TEST(NcclVersion, AnotherMajorOrMinorIsRefusedByName) {
  EXPECT_EQ(comm::refusal({2, 28}, {2, 28}, "torch's"), "");
  EXPECT_THAT(comm::refusal({2, 28}, {2, 27}, "torch's"), HasSubstr("of NCCL 2.28, but torch's is 2.27. Build it"));
  EXPECT_THAT(comm::refusal({2, 28}, {3, 28}, "torch's"), HasSubstr("of NCCL 2.28, but torch's is 3.28."));
}

}  // namespace
}  // namespace strata::test
