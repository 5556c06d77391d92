#include "engine/accelerator.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <sstream>
#include <string>

#include "cli/exit_code.h"
#include "core/error.h"

namespace strata::engine {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kBudget = std::uint64_t{1} << 20;

// How the command ends whose engine launches `work` on a library's stream.
int exit_code_for(const std::function<void()>& work, std::ostream& err) {
  const auto accelerator = make_accelerator({}, {.budget_bytes = kBudget, .torch_bytes = kBudget / 2});
  const auto stream = accelerator->create_library_stream("compute");
  stream->launch(work);
  const Event done = stream->record();
  return cli::run_reporting_errors(
      [&] {
        done.wait();
        return 0;
      },
      err);
}

TEST(LibraryStream, TorchOutOfMemoryEndsAsWhatDoesNotFit) {
  std::ostringstream err;
  const auto work = [] {
    throw c10::OutOfMemoryError({"here", "file", 1}, "CUDA out of memory. Tried to allocate 2.00 GiB.");
  };
  EXPECT_EQ(exit_code_for(work, err), cli::kDoesNotFit);
  EXPECT_THAT(err.str(), HasSubstr("more memory on the GPU than the 512.00 KiB that the plan assumes"));
}

TEST(LibraryStream, AFailedCallOfCudaEndsAsAFailedDevice) {
  std::ostringstream err;
  const auto work = [] { throw c10::AcceleratorError({"here", "file", 1}, 719, "CUDA error: launch failure"); };
  EXPECT_EQ(exit_code_for(work, err), cli::kDeviceFailed);
  EXPECT_THAT(err.str(), HasSubstr("the GPU failed under torch: CUDA error: launch failure"));
}

TEST(LibraryStream, ATensorAboveTheBudgetEndsAsWhatDoesNotFit) {
  std::ostringstream err;
  const auto work = [] { at::empty({static_cast<std::int64_t>(2 * kBudget)}, at::TensorOptions(at::kByte)); };
  EXPECT_EQ(exit_code_for(work, err), cli::kDoesNotFit);
  EXPECT_THAT(err.str(), HasSubstr("2.00 MiB for Activation do not fit"));
}

TEST(LibraryStream, AMachineWithoutMemoryEndsAsWhatDoesNotFit) {
  std::ostringstream err;
  EXPECT_EQ(exit_code_for([] { throw std::bad_alloc(); }, err), cli::kDoesNotFit);
  EXPECT_THAT(err.str(), HasSubstr("no memory left for torch's tensors"));
}

}  // namespace
}  // namespace strata::engine
