#include "zero/torch_failure.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "zero/torch_allocator.h"

namespace strata::zero {
namespace {

using namespace strata::literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr c10::SourceLocation kHere{"here", "file", 1};

// What leaves for what `work` throws; its text.
template <typename Expected>
std::string text_for(const std::function<void()>& work) {
  try {
    with_torch_failures(work, 3_GiB);
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("of another type: ") + error.what();
  }
  return "nothing was thrown";
}

TEST(TorchFailure, OutOfMemoryOnAGpuSaysWhatWasPlannedAndWhatWouldFit) {
  const std::string text = text_for<OutOfBudget>([] {
    throw c10::OutOfMemoryError(kHere,
                                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 is full.\nSee the manual");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("3.00 GiB that the plan assumes"), HasSubstr("Tried to allocate 20.00 MiB"),
                          HasSubstr("per_device_train_batch_size"), HasSubstr("max_seq_length"),
                          HasSubstr("strata.recompute: all"), Not(HasSubstr("See the manual"))));
}

TEST(TorchFailure, AFailedCallOfCudaIsOfTheDevice) {
  const std::string text = text_for<DeviceError>([] {
    throw c10::AcceleratorError(kHere, 700, "CUDA error: an illegal memory access was encountered\nFor debugging ...");
  });
  EXPECT_EQ(text, "the GPU failed under torch: CUDA error: an illegal memory access was encountered");
}

TEST(TorchFailure, MemoryThatCudaItselfLacksDoesNotFit) {
  EXPECT_THAT(text_for<OutOfBudget>([] { throw c10::AcceleratorError(kHere, 2, "CUDA error: out of memory"); }),
              AllOf(HasSubstr("beside the budget"), HasSubstr("Lower strata.budgets.device")));
  EXPECT_THAT(text_for<OutOfBudget>([] {
                throw c10::Error(kHere, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
              }),
              HasSubstr("CUBLAS_STATUS_ALLOC_FAILED"));
}

TEST(TorchFailure, AFailedCallOfALibraryIsOfTheDevice) {
  EXPECT_THAT(text_for<DeviceError>([] {
                throw c10::Error(kHere, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`");
              }),
              HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED"));
  EXPECT_THAT(text_for<DeviceError>([] { throw c10::Error(kHere, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"); }),
              HasSubstr("CUDNN_STATUS_INTERNAL_ERROR"));
}

TEST(TorchFailure, AnyOtherCheckOfTorchStaysWhatItIs) {
  const auto misuse = [] { at::mm(at::empty({2, 3}), at::empty({2, 3})); };
  EXPECT_THAT(text_for<c10::Error>(misuse), HasSubstr("shapes cannot be multiplied"));
  EXPECT_EQ(text_for<std::runtime_error>([] { throw std::runtime_error("of a test"); }), "of a test");
}

TEST(TorchFailure, AMachineWithoutMemoryDoesNotFit) {
  EXPECT_THAT(text_for<OutOfBudget>([] { throw std::bad_alloc(); }), HasSubstr("no memory left for torch's tensors"));
}

TEST(TorchFailure, TheRefusalOfABudgetPasses) {
  Budget budget("host", 1_MiB);
  const TorchAllocator allocator(budget);
  EXPECT_THAT(text_for<OutOfBudget>([] { at::empty({4 << 20}, at::TensorOptions(at::kByte)); }),
              HasSubstr("host: 4.00 MiB"));
}

}  // namespace
}  // namespace strata::zero
