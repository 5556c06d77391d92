// What one finished step, or one evaluation, has to say: the console, metrics.jsonl and the tests read the same
// numbers. Losses, norms, token counts and what is computed from them are of all ranks, seconds and bytes of this one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace strata::engine {

struct TierBytes {
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t nvme = 0;
};

struct StepSeconds {
  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  double stall = 0;  // none of the three was running
  // Its causes, where they were told apart: compute waited for a drive, or for a copy between host and device.
  std::optional<double> stall_nvme = {};
  std::optional<double> stall_link = {};
  std::optional<double> stall_comm = {};  // or for a collective; with several ranks, as the next but one
  std::optional<double> nvme_busy = {};   // the busiest drive had a request in flight
  std::optional<double> comm = {};        // a collective was running
};

struct StepTraffic {
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_written = 0;
  std::uint64_t h2d = 0;
  std::uint64_t d2h = 0;
  std::optional<std::uint64_t> comm_sent = {};  // to other ranks, where there are any
};

struct StepReport {
  std::int64_t step = 0;         // 1-based: the update that has just finished
  std::int64_t total_steps = 0;  // 0 = unknown
  double epoch = 0;              // finished part of the data, 1.0 = once through
  double loss = 0;               // sum of token losses / trained tokens of the global batch
  double learning_rate = 0;      // that this update used
  double grad_norm = 0;          // before clipping
  std::uint64_t tokens = 0;      // in this step, masked ones included
  double step_seconds = 0;
  StepSeconds seconds;
  StepTraffic bytes;
  TierBytes peak_bytes;   // since the start
  TierBytes limit_bytes;  // the budgets; 0 = none
  std::uint64_t rss_bytes = 0;
  std::uint64_t skipped_steps = 0;       // since the start: updates left out because of a gradient that is not finite
  std::optional<double> loss_scale;      // that this update used; absent: none
  std::optional<double> tflops;          // model floating-point operations per second / 1e12
  std::optional<double> ideal_seconds;   // the step time of the busiest link alone
  std::string binding_link;              // which link that is; empty = unknown
  std::uint64_t nvme_written_total = 0;  // since the start, laying out the states included

  double tokens_per_second() const { return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0; }
  // Share of the step spent waiting, 0..1.
  double stall_fraction() const {
    if (!(step_seconds > 0)) return 0;
    return std::clamp(seconds.stall / step_seconds, 0.0, 1.0);
  }
};

struct EvalReport {
  std::int64_t step = 0;  // updates done before it
  double epoch = 0;
  double loss = 0;           // sum of token losses / trained tokens
  std::uint64_t tokens = 0;  // that were predicted
  double seconds = 0;
};

}  // namespace strata::engine
