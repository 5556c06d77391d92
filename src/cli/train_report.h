// What `strata train` says about a run before and after its steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/trace.h"
#include "engine/engine.h"
#include "engine/parts.h"
#include "engine/step_report.h"

namespace strata::cli {

// Sums over the run, for the table at its end.
struct Moved {
  engine::StepTraffic bytes;
  std::int64_t steps = 0;
  double seconds = 0;

  void add(const engine::StepReport& report);
};

// What weight decay shrinks and what it spares.
std::string decay_text(double decay, const std::vector<zero::GroupDecl>& groups);

// Peaks against budgets, and what was moved.
std::string summary_table(engine::Engine& engine, const Moved& moved);

// Writes the trace when the command ends, however it ends. A trace that cannot be written fails no training.
class TraceFile {
 public:
  TraceFile(const Trace* trace, std::filesystem::path path) : trace_(trace), path_(std::move(path)) {}
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

 private:
  const Trace* trace_;
  std::filesystem::path path_;
};

}  // namespace strata::cli
