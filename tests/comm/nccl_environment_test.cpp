#include "comm/nccl_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace strata::test {
namespace {

using ::testing::StartsWith;

std::string refused(const std::map<std::string, std::string>& environment) {
  return comm::refused_nccl_environment([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found != environment.end() ? found->second.c_str() : nullptr;
  });
}

TEST(NcclEnvironment, IsFreeWhereLateCollectivesStillEnd) {
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}, {"TORCH_NCCL_BLOCKING_WAIT", "0"}}), "");
  EXPECT_EQ(refused({{"NCCL_DEBUG", "INFO"}}), "");
}

TEST(NcclEnvironment, IsRefusedWhereNobodyWouldTell) {
  EXPECT_THAT(refused({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}),
              StartsWith("TORCH_NCCL_ASYNC_ERROR_HANDLING=3 leaves"));
  EXPECT_THAT(refused({{"NCCL_ASYNC_ERROR_HANDLING", "0"}}), StartsWith("NCCL_ASYNC_ERROR_HANDLING=0 leaves"));
  EXPECT_THAT(refused({{"TORCH_NCCL_BLOCKING_WAIT", "1"}}), StartsWith("TORCH_NCCL_BLOCKING_WAIT=1 leaves"));
  EXPECT_THAT(refused({{"NCCL_BLOCKING_WAIT", "true"}}), StartsWith("NCCL_BLOCKING_WAIT=true leaves"));
}

}  // namespace
}  // namespace strata::test
