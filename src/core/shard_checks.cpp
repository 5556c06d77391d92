#include "core/shard_checks.h"

#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace strata {
namespace {

void check_context(const StepContext& context) {
  STRATA_EXPECTS(context.step >= 1, "the first step is 1, got " + std::to_string(context.step));
  STRATA_EXPECTS(context.beta1 >= 0 && context.beta1 < 1, "beta1 is in [0, 1), got " + std::to_string(context.beta1));
  STRATA_EXPECTS(context.beta2 >= 0 && context.beta2 < 1, "beta2 is in [0, 1), got " + std::to_string(context.beta2));
}

void check_segments(const ShardViews& views) {
  std::size_t end = 0;
  for (const Segment& segment : views.segments) {
    STRATA_EXPECTS(segment.offset >= end, "segment " + segment.name + " at " + std::to_string(segment.offset) +
                                              " overlaps the one before, which ends at " + std::to_string(end));
    STRATA_EXPECTS(segment.offset <= views.param.numel && segment.numel <= views.param.numel - segment.offset,
                   "segment " + segment.name + " reaches past the view of " + std::to_string(views.param.numel));
    end = segment.offset + segment.numel;
  }
}

}  // namespace

void check_step(const StepContext& context, const ShardViews& views, std::span<const StateSpec> states) {
  check_context(context);
  const std::size_t numel = views.param.numel;
  STRATA_EXPECTS(views.grad.numel == numel, "gradient has " + std::to_string(views.grad.numel) +
                                                " elements, parameter has " + std::to_string(numel));
  STRATA_EXPECTS(views.states.size() == states.size(),
                 "expected " + std::to_string(states.size()) + " states, got " + std::to_string(views.states.size()));
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::size_t values = states[i].values_for(numel);
    STRATA_EXPECTS(views.states[i].dtype == states[i].dtype && views.states[i].numel == values,
                   "state " + states[i].name + " must be " + std::string(name_of(states[i].dtype)) + " with " +
                       std::to_string(values) + " values");
    STRATA_EXPECTS(states[i].elements_per_value == 1 || views.first_element % states[i].elements_per_value == 0,
                   "a view of " + states[i].name + " starts at element " + std::to_string(views.first_element) +
                       ", inside a block of " + std::to_string(states[i].elements_per_value));
  }
  check_segments(views);
}

void check_same_numel(TensorSpan destination, TensorSpan source) {
  STRATA_EXPECTS(destination.numel == source.numel, "destination has " + std::to_string(destination.numel) +
                                                        " elements, source has " + std::to_string(source.numel));
}

void check_rows(TensorSpan rows, std::size_t count, std::size_t into) {
  STRATA_EXPECTS(count > 0 && rows.numel % count == 0 && into < count,
                 std::to_string(rows.numel) + " elements are " + std::to_string(count) +
                     " rows of equal size, one of which gets the sum, not row " + std::to_string(into));
}

void check_sums(TensorSpan values, std::span<const double> sums) {
  STRATA_EXPECTS(sums.size() == ceil_div(values.numel, ShardMath::kNormBlock),
                 std::to_string(values.numel) + " elements need ceil(numel / kNormBlock) sums, got " +
                     std::to_string(sums.size()));
}

void check_message(TensorSpan message, TensorSpan values, BlockCode code) {
  STRATA_EXPECTS(message.dtype == DType::U8 && message.numel == message_bytes(code, values.numel),
                 std::to_string(values.numel) + " elements make a message of " +
                     std::to_string(message_bytes(code, values.numel)) + " bytes, got " +
                     std::to_string(message.numel) + " " + std::string(name_of(message.dtype)));
}

void check_sum_type(TensorSpan sum) {
  STRATA_EXPECTS(sum.dtype == DType::F32, "a sum is F32, not " + std::string(name_of(sum.dtype)));
}

}  // namespace strata
