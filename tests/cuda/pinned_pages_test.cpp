#include "cuda/pinned_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "cuda/fake_device.h"

namespace strata::test {
namespace {

class PinnedPages : public ::testing::Test {
 protected:
  std::string refusal(std::span<std::byte> pages) {
    try {
      cuda::pin_pages(context_, pages);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  FakeRuntime runtime_;
  Budget budget_{"host of the test", std::uint64_t{1} << 20};
  cuda::DeviceContext context_{0};
  Buffer memory_ = allocate_host(budget_, 4 * kPageBytes, MemoryTag::Staging);
};

TEST_F(PinnedPages, ArePinnedUntilTheRegionEnds) {
  {
    const auto region = cuda::pin_pages(context_, memory_.span());
    EXPECT_EQ(fake().alive().pinned_regions, 1U);
  }
  EXPECT_EQ(fake().alive().pinned_regions, 0U);
  EXPECT_NO_THROW(cuda::pin_pages(context_, memory_.span()));
}

TEST_F(PinnedPages, AreWholePages) {
  EXPECT_THROW(cuda::pin_pages(context_, memory_.span().subspan(1, kPageBytes)), ContractViolation);
  EXPECT_THROW(cuda::pin_pages(context_, memory_.span().first(kPageBytes + 1)), ContractViolation);
  EXPECT_THROW(cuda::pin_pages(context_, {}), ContractViolation);
}

TEST_F(PinnedPages, ThatOverlapPinnedOnesAreRefused) {
  const auto region = cuda::pin_pages(context_, memory_.span().first(2 * kPageBytes));
  EXPECT_THAT(refusal(memory_.span().subspan(kPageBytes)), testing::HasSubstr("pinned already"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(PinnedPages, ThatTheSystemDoesNotLockNameTheLimit) {
  fake().fail_call("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  const std::string text = refusal(memory_.span());
  EXPECT_THAT(text, testing::HasSubstr("could not pin 16.00 KiB"));
  EXPECT_THAT(text, testing::HasSubstr("limit of locked memory"));
  EXPECT_THAT(text, testing::HasSubstr("ulimit -l"));
}

TEST_F(PinnedPages, OtherErrorsKeepTheirNames) {
  fake().fail_call("cudaHostRegister", 1, cudaErrorNotSupported);
  EXPECT_THAT(refusal(memory_.span()), testing::HasSubstr("cudaHostRegister failed: cudaErrorNotSupported"));
}

TEST_F(PinnedPages, AFailureToUnpinIsLogged) {
  auto region = cuda::pin_pages(context_, memory_.span());
  fake().fail_call("cudaHostUnregister", 1, cudaErrorInvalidValue);
  testing::internal::CaptureStderr();
  region.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("cudaHostUnregister failed"));
  EXPECT_EQ(cudaHostUnregister(memory_.data()), cudaSuccess);
}

}  // namespace
}  // namespace strata::test
