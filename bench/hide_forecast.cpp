#include "bench/hide_forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace strata::bench {
namespace {

constexpr double kWeight = 2;  // bytes of a 16-bit weight, and of a gradient
constexpr double kSlack = 1.1;

double state_bytes(const Arrangement& arrangement) {
  return state_bytes_per_element(arrangement.optimizer, DType::BF16);
}

double in_ram(const Arrangement& arrangement) {
  double bytes = 0;
  if (arrangement.weights == WeightsAt::Ram) bytes += kWeight;
  // Without clipping a gradient lives until its own update, in a ring.
  if (arrangement.clipping == Clipping::Exact) bytes += kWeight;
  return bytes;
}

// What the update itself moves, by `share` of the parameters: old weights come along only where they complete a
// remainder.
struct Update {
  Traffic traffic;

  void on_cpu(const Arrangement& arrangement, double share) {
    const double old = reads_param(arrangement.optimizer, DType::BF16) ? kWeight : 0;
    traffic.dram += share * (2 * state_bytes(arrangement) + kWeight /* gradient */ + kWeight /* new weight */ + old);
    // Without clipping the gradient is only now sent; with it, that was the backward's.
    if (arrangement.clipping == Clipping::None) {
      traffic.to_host += share * kWeight;
      traffic.dram += share * kWeight;
    }
  }
  // `streamed`: bytes of state per parameter that come and go.
  void on_device(const Arrangement& arrangement, double share, double streamed) {
    const bool clips = arrangement.clipping == Clipping::Exact;
    // Without clipping gradient and old weight are on the device anyway: the backward has just used them.
    const double fetched = clips ? kWeight + (reads_param(arrangement.optimizer, DType::BF16) ? kWeight : 0) : 0;
    traffic.to_device += share * (streamed + fetched);
    traffic.to_host += share * (streamed + kWeight);
    traffic.dram += share * (2 * streamed + fetched + kWeight);
  }
};

// Share of the states on the device, beside two layers gathered and two layers' gradients.
double resident_share(const Machine& machine, const ModelShape& model, const Arrangement& arrangement) {
  if (arrangement.site != Site::Resident) return 0;
  const double spare = machine.gpu_bytes - machine.gpu_reserve - 4 * kWeight * model.largest_group;
  return std::clamp(spare / (state_bytes(arrangement) * model.parameters), 0.0, 1.0);
}

void add(Traffic& to, const Traffic& from) {
  to.to_device += from.to_device;
  to.to_host += from.to_host;
  to.read += from.read;
  to.written += from.written;
  to.dram += from.dram;
}

double drive_seconds(const Machine& machine, const Traffic& traffic) {
  const double reading = traffic.read / machine.drive_read;
  const double writing = traffic.written / machine.drive_write;
  return machine.half_duplex ? reading + writing : std::max(reading, writing);
}

// Of one parameter, where nothing is computed.
Phase slowest(const Machine& machine, const Traffic& traffic) {
  const std::pair<double, const char*> times[] = {{traffic.to_device / machine.link, "to device"},
                                                  {traffic.to_host / machine.link, "to host"},
                                                  {drive_seconds(machine, traffic), "drive"},
                                                  {traffic.dram / machine.dram, "memory"}};
  const auto longest = *std::max_element(std::begin(times), std::end(times));
  return {longest.first, longest.second};
}

}  // namespace

double forward_seconds(const Machine& machine, const ModelShape& model, double tokens) {
  return 2 * model.parameters * tokens / machine.flops;
}

double backward_seconds(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                        double tokens) {
  return (arrangement.recompute ? 6 : 4) * model.parameters * tokens / machine.flops;
}

double ram_needed(const Machine& machine, const ModelShape& model, const Arrangement& arrangement) {
  const double on_host = 1 - resident_share(machine, model, arrangement);
  const double states = arrangement.states == StatesAt::Ram ? on_host * state_bytes(arrangement) : 0;
  return machine.ram_reserve + (in_ram(arrangement) + states) * model.parameters;
}

std::optional<Forecast> forecast(const Machine& machine, const ModelShape& model, const Arrangement& arrangement) {
  const double s = state_bytes(arrangement);
  Forecast result;
  result.resident = resident_share(machine, model, arrangement);
  const double on_host = 1 - result.resident;
  const double left = machine.ram_bytes - ram_needed(machine, model, arrangement);
  if (left < 0) return std::nullopt;
  double missing = 0;  // bytes of state per parameter that the drive moves each way
  if (arrangement.states == StatesAt::Nvme && on_host > 0) {
    result.cached = std::clamp(left / (on_host * s * model.parameters), 0.0, 1.0);
    missing = on_host * s * (1 - result.cached);
  }

  Update update;
  if (arrangement.site == Site::Streamed) update.on_device(arrangement, 1, s);
  if (arrangement.site == Site::Resident) update.on_device(arrangement, result.resident, 0);
  if (arrangement.site != Site::Streamed) update.on_cpu(arrangement, on_host);
  update.traffic.read += missing;
  update.traffic.written += missing;
  update.traffic.dram += 2 * missing;
  const bool weights_move = arrangement.weights == WeightsAt::Nvme;
  if (weights_move) {
    update.traffic.written += kWeight;
    update.traffic.dram += kWeight;
    // Old weights for a remainder; without clipping the backward's gather has just read them.
    if (arrangement.clipping == Clipping::Exact && reads_param(arrangement.optimizer, DType::BF16)) {
      update.traffic.read += kWeight;
      update.traffic.dram += kWeight;
    }
  }

  result.forward = {.to_device = kWeight, .dram = kWeight};
  result.backward = {.to_device = kWeight, .dram = kWeight};
  if (arrangement.clipping == Clipping::Exact) add(result.backward, {.to_host = kWeight, .dram = kWeight});
  if (weights_move) {
    add(result.backward, {.read = kWeight, .dram = kWeight});
    // With clipping the update leaves the new weight to the forward.
    if (arrangement.clipping == Clipping::None) add(result.forward, {.read = kWeight, .dram = kWeight});
  }
  add(arrangement.clipping == Clipping::Exact ? result.forward : result.backward, update.traffic);
  result.update_seconds = model.parameters * slowest(machine, update.traffic).seconds;
  result.tail_seconds = model.first_group * slowest(machine, update.traffic).seconds;
  return result;
}

std::array<Phase, 2> phases(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                            const Forecast& forecast, double tokens) {
  const auto phase = [&](const Traffic& traffic, double computing) {
    Phase moving = slowest(machine, traffic);
    moving.seconds *= model.parameters;
    return moving.seconds > computing ? moving : Phase{computing, "compute"};
  };
  return {phase(forecast.forward, forward_seconds(machine, model, tokens)),
          phase(forecast.backward, backward_seconds(machine, model, arrangement, tokens))};
}

double step_seconds(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                    const Forecast& forecast, double tokens) {
  const std::array<Phase, 2> both = phases(machine, model, arrangement, forecast, tokens);
  return both[0].seconds + both[1].seconds + forecast.tail_seconds;
}

std::uint64_t tokens_that_hide(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                               const Forecast& forecast) {
  // Step over compute falls with the tokens.
  const auto hides = [&](std::uint64_t tokens) {
    const auto t = static_cast<double>(tokens);
    const double compute = forward_seconds(machine, model, t) + backward_seconds(machine, model, arrangement, t);
    return step_seconds(machine, model, arrangement, forecast, t) <= kSlack * compute;
  };
  std::uint64_t enough = 1;
  while (!hides(enough)) {
    STRATA_EXPECTS(enough < std::uint64_t{1} << 50, "a machine without rates hides nothing");
    enough *= 2;
  }
  std::uint64_t few = enough / 2;  // does not hide, or is 0
  while (enough - few > 1) {
    const std::uint64_t middle = few + (enough - few) / 2;
    (hides(middle) ? enough : few) = middle;
  }
  return enough;
}

}  // namespace strata::bench
