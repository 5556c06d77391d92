// NCCL in the CUDA plug-in loads, and says why where it cannot work. Its communicator:
// tests/gpu/nccl_communicator_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>

#include "comm/nccl_backend.h"
#include "core/error.h"

namespace strata::test {
namespace {

using ::testing::HasSubstr;

// What was built, unless the environment names another.
std::string plugin() {
  const char* const named = std::getenv("STRATA_CUDA_PLUGIN");
  return named != nullptr ? named : STRATA_CUDA_PLUGIN;
}

std::string failure_of(const comm::NcclOptions& options) {
  try {
    comm::make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
  } catch (const CommError& e) {
    return e.what();
  }
  return "";
}

TEST(NcclBackend, AMissingPlugInIsNamed) {
  const std::string text = failure_of({.plugin = "no_such_library.so"});
  EXPECT_THAT(text, HasSubstr("NCCL is not available: no_such_library.so"));
}

TEST(NcclBackend, ThePlugInLoadsAndMakesABackendOrSaysWhyNot) {
  struct stat device {};
  const bool has_gpu = stat("/dev/nvidia0", &device) == 0;

  const std::string text = failure_of({.timeout = std::chrono::milliseconds(10000), .plugin = plugin()});

  if (!has_gpu) {
    EXPECT_THAT(text, HasSubstr("NCCL cannot start: "));
    EXPECT_THAT(text, HasSubstr("no GPU"));
    GTEST_SKIP() << "no GPU here; NCCL says: " << text;
  }
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace strata::test
