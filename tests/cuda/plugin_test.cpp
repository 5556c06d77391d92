// The plug-in over the fake runtime, opened as the program opens the real one: by path and name. This program links
// nothing of CUDA.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "cuda/backend.h"
#include "support/event_failures.h"
#include "support/fake_cuda/fake_cuda.h"

namespace strata::test {
namespace {

class Plugin : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(library_, nullptr) << dlerror();
    find<decltype(strata_fake_cuda)>("strata_fake_cuda")()->reset({.seed = 1});
  }

  template <typename Function>
  Function* find(const char* name) {
    void* symbol = dlsym(library_.get(), name);
    EXPECT_NE(symbol, nullptr) << name;
    return reinterpret_cast<Function*>(symbol);
  }
  fake_cuda::Control& control() { return *find<decltype(strata_fake_cuda)>("strata_fake_cuda")(); }
  std::unique_ptr<cuda::Backend> open(const cuda::BackendOptions& options) {
    return std::unique_ptr<cuda::Backend>(
        find<strata_cuda_open_t>("strata_cuda_open")(&options, why_.data(), why_.size()));
  }
  int count() { return find<strata_cuda_device_count_t>("strata_cuda_device_count")(why_.data(), why_.size()); }

  std::array<char, 256> why_{};

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library_{dlopen(STRATA_CUDA_FAKE_PLUGIN, RTLD_NOW | RTLD_LOCAL)};
};

TEST_F(Plugin, CountsDevices) {
  EXPECT_EQ(count(), 1);
  EXPECT_STREQ(why_.data(), "");
}

TEST_F(Plugin, TellsWhereTorchComputesWithoutADevice) {
  control().reset({.devices = 0});
  EXPECT_EQ(find<strata_cuda_torch_place_t>("strata_cuda_torch_place")(), cuda::TorchPlace::Host);
}

TEST_F(Plugin, SaysWhyThereIsNoDevice) {
  control().reset({.devices = 0});
  EXPECT_EQ(count(), 0);
  EXPECT_THAT(why_.data(), testing::HasSubstr("no CUDA-capable device"));
}

TEST_F(Plugin, CutsAReasonThatIsLongerThanItsPlace) {
  control().reset({.devices = 0});
  std::array<char, 5> place{};
  EXPECT_EQ(find<strata_cuda_device_count_t>("strata_cuda_device_count")(place.data(), place.size()), 0);
  EXPECT_STREQ(place.data(), "cuda");
}

TEST_F(Plugin, SaysWhyItDoesNotOpen) {
  EXPECT_EQ(open({.device = 3, .budget_bytes = 0}), nullptr);
  EXPECT_THAT(why_.data(), testing::HasSubstr("cudaSetDevice failed"));
}

TEST_F(Plugin, GivesADeviceThatCopies) {
  {
    const auto backend = open({.device = 0, .budget_bytes = 1 << 20});
    ASSERT_NE(backend, nullptr) << why_.data();
    Budget budget("host of the test", 1 << 20);
    const Buffer host = allocate_host(budget, 2 * kPageBytes, MemoryTag::Staging);
    const auto pin = backend->pin(host.span());
    const Buffer memory = backend->device().allocate(kPageBytes, MemoryTag::Gather);
    const auto stream = backend->device().create_stream("s");
    std::memset(host.data(), 9, kPageBytes);

    stream->copy(memory.data(), host.data(), kPageBytes);
    stream->copy(host.data() + kPageBytes, memory.data(), kPageBytes);
    stream->record().wait();

    EXPECT_EQ(host.data()[2 * kPageBytes - 1], std::byte{9});
  }
  EXPECT_THAT(control().violations(), testing::IsEmpty());
  EXPECT_EQ(control().alive().device_allocations, 0U);
}

TEST_F(Plugin, ThrowsTheErrorsOfCore) {
  const auto backend = open({.device = 0, .budget_bytes = kPageBytes});
  ASSERT_NE(backend, nullptr) << why_.data();
  EXPECT_THROW(backend->device().allocate(2 * kPageBytes, MemoryTag::Gather), OutOfBudget);
  control().fail_call("cudaMallocFromPoolAsync", 1, 2);  // cudaErrorMemoryAllocation
  EXPECT_THROW(backend->device().allocate(kPageBytes, MemoryTag::Gather), DeviceError);
}

TEST_F(Plugin, TakesEventsOfTheProgram) {
  const auto backend = open({.device = 0, .budget_bytes = 0});
  ASSERT_NE(backend, nullptr) << why_.data();
  const auto stream = backend->device().create_stream("s");
  stream->wait(Event::failed(failure("of the program")));
  EXPECT_EQ(text_of(stream->record().wait_noexcept()), "of the program");
}

}  // namespace
}  // namespace strata::test
