// What a user sees while a run goes on: a bar on a terminal, one line per logged step everywhere else.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "engine/step_report.h"

namespace strata::cli {

// What stands behind an output stream.
struct Terminal {
  enum class Kind : std::uint8_t { Pipe, Interactive };
  enum class Colour : std::uint8_t { Off, On };
  Kind kind = Kind::Pipe;
  Colour colour = Colour::Off;
  // Columns now; asked at each drawing because windows are resized. Requires where Interactive: callable.
  std::function<int()> columns;

  // Interactive where `fd` is a terminal that can redraw a line (TERM is not "dumb"); colours unless NO_COLOR is set
  // and not empty (https://no-color.org).
  static Terminal of(int fd);
};

// Whether a step gets a line: the first, the last and every `logging_steps`-th. Requires: logging_steps > 0.
bool is_logged_step(std::int64_t step, std::int64_t total_steps, std::int64_t logging_steps);

// "step 120/1500 ep 0.24 loss 1.832 lr 1.8e-5 ..."; see docs/config.md. Sizes are in GiB, rates in GB/s. Parts about
// which the report knows nothing (no limit, no drive traffic, no total) are left out.
std::string step_line(const engine::StepReport& report, std::optional<double> eta_seconds);

// The same parts on one line of at most `columns` - 1 columns, with a bar: parts are dropped, the least urgent first,
// until the rest fits.
std::string bar_line(const engine::StepReport& report, std::optional<double> eta_seconds, int columns,
                     Terminal::Colour colour);

// One owner thread. Write nothing else to the terminal while a bar is shown, except through message().
class Progress {
 public:
  // `out` must outlive this object. Requires: logging_steps > 0.
  Progress(std::ostream& out, Terminal terminal, std::int64_t logging_steps);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Call for every step: redraws the bar, or prints a line where the step is a logged one.
  void step(const engine::StepReport& report);
  void evaluation(const engine::EvalReport& report);
  // A line above the bar.
  void message(std::string_view text);
  // Leaves the last state of the bar on the screen. Further calls do nothing until the next step().
  void finish();

 private:
  std::optional<double> eta(const engine::StepReport& report);

  std::ostream& out_;
  const Terminal terminal_;
  const std::int64_t logging_steps_;
  std::optional<double> smoothed_seconds_;  // of one step
  std::string drawn_;                       // the bar that is on the screen
};

}  // namespace strata::cli
