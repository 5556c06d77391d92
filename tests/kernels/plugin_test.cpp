// The plug-in as the program finds it: by path and name. Passes with and without a device.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/adamw.h"

namespace strata::kernels {
namespace {

class CudaPlugin : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(library_, nullptr) << dlerror(); }
  template <typename Function>
  Function* find(const char* name) {
    void* symbol = dlsym(library_.get(), name);
    EXPECT_NE(symbol, nullptr) << name;
    return reinterpret_cast<Function*>(symbol);
  }

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library_{dlopen(STRATA_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL)};
};

TEST_F(CudaPlugin, LoadsWithoutADriverAndSaysWhyThereIsNoDevice) {
  const int devices = find<decltype(strata_cuda_device_count)>("strata_cuda_device_count")();

  if (devices <= 0) {
    const std::string why = find<decltype(strata_cuda_error_string)>("strata_cuda_error_string")(-devices);
    EXPECT_FALSE(why.empty());
    EXPECT_NE(why, "unrecognized error code");
  }
}

TEST_F(CudaPlugin, AnEmptyRunQueuesNothing) {
  const UpdateConstants constants;
  const AdamwRun run;

  EXPECT_EQ(find<decltype(strata_cuda_adamw)>("strata_cuda_adamw")(&constants, &run, 1, 1, nullptr), 0);
}

TEST_F(CudaPlugin, RefusesTypesItHasNoKernelFor) {
  const UpdateConstants constants;
  AdamwRun run;
  run.numel = 1;

  EXPECT_NE(find<decltype(strata_cuda_adamw)>("strata_cuda_adamw")(&constants, &run, 7, 0, nullptr), 0);
  EXPECT_NE(find<decltype(strata_cuda_adamw)>("strata_cuda_adamw")(&constants, &run, 1, 2, nullptr), 0);
}

}  // namespace
}  // namespace strata::kernels
