#include "bench/step_summary.h"

#include "core/statistics.h"

namespace strata::bench {

using engine::StepSummary;

nlohmann::json summary_of(const std::vector<StepSummary>& steps) {
  const auto of = [&steps](double StepSummary::*member) {
    std::vector<double> values;
    for (const StepSummary& step : steps) values.push_back(step.*member);
    return median(values);
  };
  return {{"seconds", of(&StepSummary::seconds)},           {"forward", of(&StepSummary::forward_seconds)},
          {"backward", of(&StepSummary::backward_seconds)}, {"optimizer", of(&StepSummary::optimizer_seconds)},
          {"stall", of(&StepSummary::stall_seconds)},       {"nvme_read_bytes", steps.back().nvme_read},
          {"nvme_written_bytes", steps.back().nvme_written}};
}

}  // namespace strata::bench
