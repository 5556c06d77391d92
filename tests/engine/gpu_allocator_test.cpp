#include "engine/gpu_allocator.h"

#include <gtest/gtest.h>

namespace strata::engine {
namespace {

using namespace strata::literals;

// 32 MiB for each of two handles; 22 MiB of pages for each of two streams.
TEST(GpuAllocator, NamesWhatTorchDocuments) {
  EXPECT_EQ(gpu_allocator::kNamed, 108_MiB);
}

TEST(GpuAllocator, AssumesNoLessThanBeforeItsPartsHadNames) {
  EXPECT_EQ(kGpuAllocatorBytes, 160_MiB);
  EXPECT_EQ(with_gpu_fragments(1000), 1100U);
}

}  // namespace
}  // namespace strata::engine
