// Helper of adamw_oracle_test.py: runs CpuOptimizer over raw files.
// adamw_oracle DIR STEPS LR BETA1 BETA2 EPS WEIGHT_DECAY
// DIR/master.f32 [n] and DIR/grads.bf16 [steps, n] are read; DIR/master.f32, DIR/exp_avg.f32, DIR/exp_avg_sq.f32 and
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
  if (argc != 8) {
    std::cerr << "usage: adamw_oracle DIR STEPS LR BETA1 BETA2 EPS WEIGHT_DECAY\n";
    return 2;
  }
  const std::string dir = argv[1];
  std::vector<float> master = read_file<float>(dir + "/master.f32");
  std::vector<std::uint16_t> grads = read_file<std::uint16_t>(dir + "/grads.bf16");
  std::vector<float> exp_avg(master.size()), exp_avg_sq(master.size());
  std::vector<std::uint16_t> param(master.size());
  const std::vector<strata::TensorSpan> states = {span_of(master, DType::F32), span_of(exp_avg, DType::F32),
                                                  span_of(exp_avg_sq, DType::F32)};
  const std::vector<strata::Segment> segments = {
      {.name = "p", .shape = {}, .offset = 0, .numel = master.size(), .decay = true}};
  const auto parallel = strata::make_thread_pool(2);
  strata::cpu_adam::CpuOptimizer optimizer(*parallel);

  strata::StepContext context = {.learning_rate = std::atof(argv[3]),
                                 .beta1 = std::atof(argv[4]),
                                 .beta2 = std::atof(argv[5]),
                                 .epsilon = std::atof(argv[6]),
                                 .weight_decay = std::atof(argv[7])};
  for (context.step = 1; context.step <= std::atoll(argv[2]); ++context.step) {
    const std::size_t first = static_cast<std::size_t>(context.step - 1) * master.size();
    const strata::TensorSpan grad = span_of(grads, DType::BF16).subspan(first, master.size());
    optimizer.step(context, {span_of(param, DType::BF16), grad, states, segments}).wait();
  }
  write_file(dir + "/master.f32", master);
  write_file(dir + "/exp_avg.f32", exp_avg);
  write_file(dir + "/exp_avg_sq.f32", exp_avg_sq);
  write_file(dir + "/param.bf16", param);
  return 0;
}
