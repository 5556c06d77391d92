// Question: how near is the fused CPU AdamW step to the rate at which this machine's memory moves the same bytes?
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/optimizer_config.h"

namespace strata::bench {

struct AdamBenchOptions {
  std::size_t numel = std::size_t{1} << 26;  // 1.1 GB of arrays: far larger than most last-level caches
  std::size_t threads = 0;                   // 0: all usable CPUs
  std::size_t rounds = 7;
  // Encodings of master and moments: fp32, remainder, bf16, 8bit, remainder+bf16, remainder+8bit.
  std::vector<std::string> states = {"fp32"};
};

// The names that `states` takes, and what one means. Throws: ConfigError for another name.
std::vector<std::string> adam_bench_states();
OptimizerConfig optimizer_of_states(const std::string& name);

// Throws: ConfigError on zero numel or rounds and no states.
void check_adam_bench(const AdamBenchOptions& options);

// Measures, for each entry of `states`, the fused AdamW step (bf16 gradient in, bf16 parameter out) and several loops
// that move the same streams with almost no arithmetic, on the same arrays, huge pages and threads. Within a round the
// arrays are cut into slices, and step and loops alternate slice by slice, each on a slice that the others left long
// ago: what else the machine does then meets all of them alike. The memory ceiling of a round is the best of its loops.
// STREAM's triad is measured beside them.
// Returns (rates are medians over rounds, of the first entry) numel, threads, rounds, params_per_second,
// ceiling_params_per_second, peers (empty here; bench/adam_vs_peers.py has them), and per entry the same with spread.
// Allocates options.numel * 16 bytes and 3/4 GiB for the triad at most. Throws: ConfigError on zero numel or rounds and
// unknown states; OutOfBudget.
nlohmann::json run_adam_bench(const AdamBenchOptions& options);

// The same as a table for people.
std::string format_adam_bench(const nlohmann::json& result);

}  // namespace strata::bench
