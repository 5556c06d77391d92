#include "bench/bench_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench_cuda_adam.h"
#include "core/error.h"
#include "engine/cuda_plugin.h"

namespace strata::bench {
namespace {

using ::testing::HasSubstr;

LinkBenchOptions quick() {
  return {.device = "host", .sizes = {5000, 1 << 20}, .bytes = 1 << 20, .rounds = 2};
}

// On the GPU where there is one: what is measured there is another matter, the result has the same form.
TEST(BenchLink, MeasuresEverySizeEachWayAndBothAtOnce) {
  for (const char* device : {"host", "auto"}) {
    LinkBenchOptions options = quick();
    options.device = device;

    const nlohmann::json result = run_link_bench(options);

    ASSERT_EQ(result["rows"].size(), 6u);
    EXPECT_EQ(result["rows"][0]["bytes"], 5000);
    EXPECT_EQ(result["rows"][0]["direction"], "to device");
    EXPECT_EQ(result["rows"][5]["bytes"], 1 << 20);
    EXPECT_EQ(result["rows"][5]["direction"], "both");
    for (const nlohmann::json& row : result["rows"]) {
      EXPECT_GT(row["bytes_per_second"]["median"].get<double>(), 0);
      EXPECT_GT(row["bare_bytes_per_second"]["worst"].get<double>(), 0);
      EXPECT_GT(row["over_bare"]["median"].get<double>(), 0);
    }
    EXPECT_EQ(result["gpu"].is_null(), result["device"] == "host");
  }
}

TEST(BenchLink, PrintsALineForEach) {
  const std::string text = format_link_bench(run_link_bench(quick()));

  EXPECT_THAT(text, HasSubstr("host device"));
  EXPECT_THAT(text, HasSubstr("1.00 MiB  both"));
}

TEST(BenchLink, RefusesWhatCannotBeMeasured) {
  for (const auto& spoil : std::initializer_list<void (*)(LinkBenchOptions&)>{
           [](LinkBenchOptions& o) { o.rounds = 0; }, [](LinkBenchOptions& o) { o.sizes = {}; },
           [](LinkBenchOptions& o) {
             o.sizes = {4096, 0};
           },
           [](LinkBenchOptions& o) { o.device = "tpu"; }}) {
    LinkBenchOptions options = quick();
    spoil(options);
    EXPECT_THROW(run_link_bench(options), ConfigError);
  }
}

template <typename Run>
std::string device_failure(Run run) {
  try {
    run();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchLink, SaysWhyThereIsNoGpu) {
  const engine::CudaDevices devices = engine::cuda_devices();
  if (devices.count > 0) GTEST_SKIP() << "there is one";
  LinkBenchOptions options = quick();
  options.device = "cuda";

  EXPECT_THAT(device_failure([&] { run_link_bench(options); }), HasSubstr(devices.why_no_more));
  EXPECT_THAT(device_failure([] { run_cuda_adam_bench({.numel = 4096, .rounds = 1}); }),
              HasSubstr(devices.why_no_more));
}

TEST(BenchCudaAdam, MeasuresEveryEncoding) {
  const engine::CudaDevices devices = engine::cuda_devices();
  if (devices.count == 0) GTEST_SKIP() << "no CUDA device: " << devices.why_no_more;

  const nlohmann::json result = run_cuda_adam_bench({.numel = 5000, .rounds = 2, .states = adam_bench_states()});

  EXPECT_EQ(result["numel"], 5120);
  ASSERT_EQ(result["states"].size(), adam_bench_states().size());
  EXPECT_EQ(result["states"]["fp32"]["bytes_per_parameter"], 28);
  EXPECT_EQ(result["states"]["remainder"]["bytes_per_parameter"], 26);
  for (const auto& [name, row] : result["states"].items()) {
    EXPECT_GT(row["over_copy"]["median"].get<double>(), 0) << name;
    EXPECT_GT(row["params_per_second"]["median"].get<double>(), 0) << name;
  }
  EXPECT_THAT(format_cuda_adam_bench(result), HasSubstr("remainder+8bit"));
}

TEST(BenchCudaAdam, RefusesWhatCannotBeMeasured) {
  EXPECT_THROW(run_cuda_adam_bench({.numel = 0}), ConfigError);
  EXPECT_THROW(run_cuda_adam_bench({.numel = 4096, .states = {}}), ConfigError);
}

}  // namespace
}  // namespace strata::bench
