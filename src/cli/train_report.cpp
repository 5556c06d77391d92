#include "cli/train_report.h"

#include <array>
#include <iomanip>
#include <sstream>

#include "core/bytes.h"
#include "core/log.h"

namespace strata::cli {
namespace {

// A write rate that has fallen below the best one is that of a drive past its fast cache.
std::string drive_line(const DriveStats& drive) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << "  drive " << drive.path << ": read at " << drive.read_rate * 1e-9
      << " GB/s, wrote at " << drive.best_write_rate * 1e-9 << " GB/s at best and " << drive.write_rate * 1e-9
      << " lately\n";
  return out.str();
}

}  // namespace

void Moved::add(const engine::StepReport& report) {
  ++steps;
  seconds += report.step_seconds;
  bytes.nvme_read += report.bytes.nvme_read;
  bytes.nvme_written += report.bytes.nvme_written;
  bytes.h2d += report.bytes.h2d;
  bytes.d2h += report.bytes.d2h;
  if (report.bytes.comm_sent) bytes.comm_sent = bytes.comm_sent.value_or(0) + *report.bytes.comm_sent;
}

std::string decay_text(double decay, const std::vector<zero::GroupDecl>& groups) {
  std::array<std::uint64_t, 2> tensors{}, numel{};
  for (const zero::GroupDecl& group : groups) {
    for (const zero::ParamDecl& param : group.params) {
      ++tensors[param.decay ? 0 : 1];
      numel[param.decay ? 0 : 1] += param.numel();
    }
  }
  std::ostringstream out;
  out << "weight decay " << decay << " of " << tensors[0] << " matrices (" << numel[0] << " parameters), not of the "
      << tensors[1] << " norms and biases (" << numel[1] << " parameters)";
  return out.str();
}

std::string summary_table(engine::Engine& engine, const Moved& moved) {
  const engine::PerTier peak = engine.peak_bytes();
  const engine::PerTier& budget = engine.memory_plan().budgets;
  std::ostringstream out;
  out << "peak of what the engine allocated, against its budgets:\n";
  for (const offload::TierKind tier : {offload::TierKind::Device, offload::TierKind::Host, offload::TierKind::Nvme}) {
    const auto t = static_cast<std::size_t>(tier);
    if (budget[t] == 0) continue;
    out << "  " << std::left << std::setw(8) << name_of(tier) << std::right << std::setw(12) << format_bytes(peak[t])
        << " of " << format_bytes(budget[t]) << "\n";
  }
  if (moved.steps == 0) return out.str();
  const auto steps = static_cast<std::uint64_t>(moved.steps);
  const auto line = [&](const char* what, std::uint64_t bytes) {
    out << "  " << std::left << std::setw(16) << what << std::right << std::setw(12) << format_bytes(bytes)
        << "   a step " << format_bytes(bytes / steps) << "\n";
  };
  out << "moved in " << moved.steps << " steps" << (moved.bytes.comm_sent ? " by this rank" : "") << " (" << std::fixed
      << std::setprecision(1) << moved.seconds << " s):\n";
  line("NVMe read", moved.bytes.nvme_read);
  line("NVMe written", moved.bytes.nvme_written);
  line("host to device", moved.bytes.h2d);
  line("device to host", moved.bytes.d2h);
  if (moved.bytes.comm_sent) line("to other ranks", *moved.bytes.comm_sent);
  for (const DriveStats& drive : engine.drives()) out << drive_line(drive);
  return out.str();
}

TraceFile::~TraceFile() {
  if (trace_ == nullptr) return;
  try {
    trace_->write(path_);
    log::info("trace: " + path_.string());
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

}  // namespace strata::cli
