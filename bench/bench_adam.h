// Question: how near is the fused CPU AdamW step to the rate at which this machine's memory moves the same bytes?
#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

namespace strata::bench {

struct AdamBenchOptions {
  std::size_t numel = std::size_t{1} << 26;  // 1.9 GB of arrays: far larger than any last-level cache
  std::size_t threads = 0;                   // 0: all usable CPUs
  std::size_t rounds = 7;
};

// Measures, interleaved in each round on the same arrays and threads: the fused step (bf16 gradient in, bf16 parameter
// out, fp32 states) on the chosen ISA, and several loops that move the same six streams with almost no arithmetic. The
// memory ceiling of a round is the best of those loops. The scalar path is measured in the first two rounds only, as it
// is slow. Returns medians in M parameters/s with their median absolute deviation, and the median of the paired ratios.
// Allocates options.numel * 16 bytes. Throws: ConfigError on zero numel or rounds; OutOfBudget.
nlohmann::json run_adam_bench(const AdamBenchOptions& options);

// The same as a table for people.
std::string format_adam_bench(const nlohmann::json& result);

}  // namespace strata::bench
