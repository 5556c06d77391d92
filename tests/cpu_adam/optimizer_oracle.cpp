// Helper of optimizer_oracle_test.py: runs CpuOptimizer with fp32 states over raw files.
// optimizer_oracle DIR KIND STEPS LR BETA1 BETA2 EPS WEIGHT_DECAY
// DIR/master.f32 [n] and DIR/grads.bf16 [steps, n] are read; DIR/master.f32, a file per moment (DIR/exp_avg.f32) and
// DIR/param.bf16 are written.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"

namespace {

template <typename T>
std::vector<T> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
void write_file(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <typename T>
strata::TensorSpan span_of(std::vector<T>& values, strata::DType dtype) {
  return {reinterpret_cast<std::byte*>(values.data()), dtype, values.size()};
}

}  // namespace

int main(int argc, char** argv) {
  using strata::DType;
  if (argc != 9) {
    std::cerr << "usage: optimizer_oracle DIR KIND STEPS LR BETA1 BETA2 EPS WEIGHT_DECAY\n";
    return 2;
  }
  const std::string dir = argv[1];
  std::vector<float> master = read_file<float>(dir + "/master.f32");
  std::vector<std::uint16_t> grads = read_file<std::uint16_t>(dir + "/grads.bf16");
  const strata::OptimizerConfig config = {.kind = strata::optimizer_kind_from_name(argv[2])};
  const std::vector<strata::MomentSpec> specs = strata::moment_specs(config.kind);
  std::vector<std::vector<float>> moments(specs.size(), std::vector<float>(master.size()));
  std::vector<std::uint16_t> param(master.size());
  std::vector<strata::TensorSpan> states = {span_of(master, DType::F32)};
  for (std::vector<float>& moment : moments) states.push_back(span_of(moment, DType::F32));
  const std::vector<strata::Segment> segments = {
      {.name = "p", .shape = {}, .offset = 0, .numel = master.size(), .decay = true}};
  const auto parallel = strata::make_thread_pool(2);
  strata::cpu_adam::CpuOptimizer optimizer(*parallel, config);

  strata::StepContext context = {.learning_rate = std::atof(argv[4]),
                                 .beta1 = std::atof(argv[5]),
                                 .beta2 = std::atof(argv[6]),
                                 .epsilon = std::atof(argv[7]),
                                 .weight_decay = std::atof(argv[8])};
  for (context.step = 1; context.step <= std::atoll(argv[3]); ++context.step) {
    const std::size_t first = static_cast<std::size_t>(context.step - 1) * master.size();
    const strata::TensorSpan grad = span_of(grads, DType::BF16).subspan(first, master.size());
    optimizer.step(context, {span_of(param, DType::BF16), grad, states, segments}).wait();
  }
  write_file(dir + "/master.f32", master);
  for (std::size_t k = 0; k < specs.size(); ++k) {
    write_file(dir + "/" + std::string(specs[k].name) + ".f32", moments[k]);
  }
  write_file(dir + "/param.bf16", param);
  return 0;
}
