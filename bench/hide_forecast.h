// How long a training step takes by the rates of a machine, and from how many tokens on that hides everything but the
// computing. Forecasts from formulas, nothing is measured: docs/hide.md derives them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/optimizer_config.h"

namespace strata::bench {

// Bytes per second, decimal bytes. The default is a workstation with one card.
struct Machine {
  double flops = 150e12;
  double dram = 60e9;
  double link = 25e9;  // each way
  double drive_read = 7e9;
  double drive_write = 6e9;
  bool half_duplex = false;  // the drive's reads and writes take turns
  double gpu_bytes = 24e9;
  double ram_bytes = 32e9;
  double gpu_reserve = 8e9;  // activations and what the driver takes
  double ram_reserve = 4e9;  // the system, and the pages that pass through
};

// The default is Llama 7B.
struct ModelShape {
  double parameters = 6738415616.0;
  double first_group = 131072000.0;    // parameters of the group that is updated alone: the embedding
  double largest_group = 202383360.0;  // of a block, or the head
};

enum class StatesAt : std::uint8_t { Ram, Nvme };
enum class WeightsAt : std::uint8_t { Ram, Nvme };
// Cpu; the device with states streamed through it and back; the device for the share of the states that fits in its
// spare memory, the CPU for the others.
enum class Site : std::uint8_t { Cpu, Streamed, Resident };
// Exact: the norm is known at the end of backward and the update runs under the next forward. None: each layer's update
// runs in backward as soon as its gradient is there.
enum class Clipping : std::uint8_t { Exact, None };

struct Arrangement {
  OptimizerConfig optimizer{};
  StatesAt states = StatesAt::Nvme;
  WeightsAt weights = WeightsAt::Ram;
  Site site = Site::Cpu;
  Clipping clipping = Clipping::Exact;
  bool recompute = true;  // forward again in backward
};

// Bytes per parameter that cross each resource.
struct Traffic {
  double to_device = 0;
  double to_host = 0;
  double read = 0;
  double written = 0;
  double dram = 0;
};

struct Forecast {
  double cached = 0;    // share of the states on the drive that RAM keeps
  double resident = 0;  // share of the states on the device
  Traffic forward;      // of the whole step, by the phase in which it has to pass
  Traffic backward;
  double update_seconds = 0;  // alone
  double tail_seconds = 0;    // of the group whose update nothing hides
};

// Seconds of computing: 2 operations per parameter and token forward, 4 backward, 2 more to recompute.
double forward_seconds(const Machine& machine, const ModelShape& model, double tokens);
double backward_seconds(const Machine& machine, const ModelShape& model, const Arrangement& arrangement, double tokens);

// Nothing where weights, gradients or states do not fit in RAM where `arrangement` wants them.
std::optional<Forecast> forecast(const Machine& machine, const ModelShape& model, const Arrangement& arrangement);
// RAM that `arrangement` needs without any cache, reserve included.
double ram_needed(const Machine& machine, const ModelShape& model, const Arrangement& arrangement);

struct Phase {
  double seconds = 0;
  std::string binding;  // "compute", "to device", "to host", "drive", "memory"
};
// The phases of a step of `tokens` tokens, forward and backward; its time is their sum and the tail.
std::array<Phase, 2> phases(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                            const Forecast& forecast, double tokens);
double step_seconds(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                    const Forecast& forecast, double tokens);

// The smallest number of tokens whose step takes at most 1.1 times its computing.
std::uint64_t tokens_that_hide(const Machine& machine, const ModelShape& model, const Arrangement& arrangement,
                               const Forecast& forecast);

}  // namespace strata::bench
