// metrics.jsonl: one JSON object a line, the keys of docs/config.md.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/step_report.h"

namespace strata::cli {

// The line for one report, without the newline. A value that is not finite is written as null.
std::string to_json_line(const engine::StepReport& report);
std::string to_json_line(const engine::EvalReport& report);

// Appends to output_dir/metrics.jsonl. One owner thread. Each append has reached the kernel when it returns, so a run
// that is killed loses no line; where an earlier one died in the middle of a line, the first append starts a new line.
class MetricsLog {
 public:
  // Requires: output_dir exists. Throws: IoError.
  explicit MetricsLog(const std::filesystem::path& output_dir);

  // Throws: IoError, e.g. when the drive is full.
  void append(const engine::StepReport& report) { append_line(to_json_line(report)); }
  void append(const engine::EvalReport& report) { append_line(to_json_line(report)); }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept;
  };
  void append_line(std::string line);
  [[noreturn]] void fail(const char* op) const;

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace strata::cli
