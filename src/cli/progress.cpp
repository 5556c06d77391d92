#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/error.h"

namespace strata::cli {
namespace {

constexpr int kFallbackColumns = 80;
constexpr std::size_t kShortestBar = 10;
constexpr std::size_t kLongestBar = 30;
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kPlain = "\x1b[0m";

// to_chars: no locale puts a comma into a number, and not finite values read "nan" and "inf".
std::string fixed(double value, int decimals) {
  std::array<char, 400> text{};  // the largest double has 309 digits before the point
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, decimals).ptr;
  return {text.data(), end};
}

std::string significant(double value, int digits) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, digits).ptr;
  std::string result(text.data(), end);
  // "1.8e-05" and "1e+20" as people write them: "1.8e-5", "1e20".
  if (const std::size_t e = result.find('e'); e != std::string::npos) {
    if (result[e + 1] == '+') result.erase(e + 1, 1);
    const std::size_t digit = e + (result[e + 1] == '-' ? 2 : 1);
    while (result[digit] == '0' && digit + 1 < result.size()) result.erase(digit, 1);
  }
  return result;
}

// Three digits where there are three to show: 0.48, 21.3, 640.
std::string three_digits(double value) {
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string gib(std::uint64_t bytes) {
  return three_digits(static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
}

std::string used_of(std::uint64_t used, std::uint64_t limit) {
  return limit > 0 ? gib(used) + "/" + gib(limit) : gib(used);
}

std::string gb_per_second(std::uint64_t bytes, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
  return fixed(rate, rate < 0.095 && bytes > 0 ? 2 : 1);
}

std::string clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e9)));
  const auto two = [](std::int64_t value) { return (value < 10 ? "0" : "") + std::to_string(value); };
  const std::string minutes_seconds = two(whole / 60 % 60) + ":" + two(whole % 60);
  return whole >= 3600 ? std::to_string(whole / 3600) + ":" + minutes_seconds
                       : std::to_string(whole / 60) + ":" + two(whole % 60);
}

std::string of_total(std::int64_t step, std::int64_t total) {
  return std::to_string(step) + (total > 0 ? "/" + std::to_string(total) : "");
}

// One part of the line. `urgency`: what a narrow line keeps longest; 0 is never dropped.
struct Part {
  int urgency;
  std::string label;
  std::string value;
};

std::vector<Part> parts_of(const engine::StepReport& report, std::optional<double> eta_seconds) {
  std::vector<Part> parts = {
      {0, "step", of_total(report.step, report.total_steps)},
      {10, "ep", fixed(report.epoch, 2)},
      {1, "loss", fixed(report.loss, std::fabs(report.loss) < 100 ? 3 : 1)},
      {5, "lr", significant(report.learning_rate, 3)},
      {6, "gnorm", std::fabs(report.grad_norm) < 1000 ? fixed(report.grad_norm, 2) : significant(report.grad_norm, 3)},
      {3, "tok/s", three_digits(report.tokens_per_second())}};
  if (report.tokens_per_second() >= 10) parts.back().value = fixed(report.tokens_per_second(), 0);
  if (report.peak_bytes.device > 0 || report.limit_bytes.device > 0) {
    parts.push_back({7, "dev", used_of(report.peak_bytes.device, report.limit_bytes.device)});
  }
  if (report.peak_bytes.host > 0 || report.limit_bytes.host > 0) {
    parts.push_back({8, "ram", used_of(report.peak_bytes.host, report.limit_bytes.host)});
  }
  if (report.bytes.nvme_read > 0 || report.bytes.nvme_written > 0) {
    parts.push_back({9, "nvme",
                     "r" + gb_per_second(report.bytes.nvme_read, report.step_seconds) + " w" +
                         gb_per_second(report.bytes.nvme_written, report.step_seconds) + " GB/s"});
  }
  if (report.ideal_seconds && report.step_seconds > 0) {
    // Of the step: what it would take if everything overlapped, and what it would then wait for.
    const bool drive = report.binding_link.starts_with("nvme");
    parts.push_back(
        {9, "ideal",
         fixed(100 * *report.ideal_seconds / report.step_seconds, 0) + "%" + (drive ? " nvme" : " compute")});
  }
  parts.push_back({4, "stall", fixed(100 * report.stall_fraction(), 0) + "%"});
  if (report.loss_scale) parts.push_back({9, "scale", significant(*report.loss_scale, 6)});
  if (report.skipped_steps > 0) parts.push_back({2, "skipped", std::to_string(report.skipped_steps)});
  if (eta_seconds) parts.push_back({2, "eta", clock(*eta_seconds)});
  return parts;
}

std::size_t width_of(const std::vector<Part>& parts) {
  std::size_t width = parts.size() - 1;
  for (const Part& part : parts) width += part.label.size() + 1 + part.value.size();
  return width;
}

void drop_until_it_fits(std::vector<Part>& parts, std::size_t width) {
  const auto less_urgent = [](const Part& a, const Part& b) { return a.urgency < b.urgency; };
  while (parts.size() > 1 && width_of(parts) > width) {
    parts.erase(std::max_element(parts.begin(), parts.end(), less_urgent));
  }
}

std::string painted(std::string_view text, std::string_view style, Terminal::Colour colour) {
  if (colour == Terminal::Colour::Off) return std::string(text);
  return std::string(style) + std::string(text) + std::string(kPlain);
}

// " [####------]" of `cells` cells.
std::string bar(const engine::StepReport& report, std::size_t cells, Terminal::Colour colour) {
  const double share = static_cast<double>(report.step) / static_cast<double>(report.total_steps);
  const auto done = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells));
  return " [" + painted(std::string(done, '#'), kGreen, colour) + std::string(cells - done, '-') + "]";
}

std::string join(const std::vector<Part>& parts, const std::string& after_first, Terminal::Colour colour) {
  std::string line;
  for (const Part& part : parts) {
    if (&part != &parts.front()) line += ' ';
    line += painted(part.label, kDim, colour) + " " + part.value;
    if (&part == &parts.front()) line += after_first;
  }
  return line;
}

int columns_of(int fd) {
  winsize size = {};
  // A terminal that does not tell its size (a serial line, some containers) answers 0 or an error.
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kFallbackColumns;
}

}  // namespace

Terminal Terminal::of(int fd) {
  const char* const term = std::getenv("TERM");
  if (isatty(fd) != 1 || term == nullptr || std::string_view(term) == "dumb") return {};
  const char* const no_color = std::getenv("NO_COLOR");
  const bool colourless = no_color != nullptr && *no_color != '\0';
  return {.kind = Kind::Interactive, .colour = colourless ? Colour::Off : Colour::On, .columns = [fd] {
            return columns_of(fd);
          }};
}

bool is_logged_step(std::int64_t step, std::int64_t total_steps, std::int64_t logging_steps) {
  STRATA_EXPECTS(logging_steps > 0, "logging_steps is positive");
  return step == 1 || step == total_steps || step % logging_steps == 0;
}

std::string step_line(const engine::StepReport& report, std::optional<double> eta_seconds) {
  return join(parts_of(report, eta_seconds), "", Terminal::Colour::Off);
}

std::string bar_line(const engine::StepReport& report, std::optional<double> eta_seconds, int columns,
                     Terminal::Colour colour) {
  // A character in the last column makes some terminals wrap, and then a redrawn line leaves rubbish behind.
  const auto width = static_cast<std::size_t>(std::max(columns - 1, 1));
  std::vector<Part> parts = parts_of(report, eta_seconds);
  drop_until_it_fits(parts, width);
  const std::size_t used = width_of(parts);
  if (used > width) return (parts.front().label + " " + parts.front().value).substr(0, width);
  const std::size_t spare = width - used;
  constexpr std::size_t kFrame = 3;  // " [" and "]"
  const bool has_bar = report.total_steps > 0 && spare >= kShortestBar + kFrame;
  return join(parts, has_bar ? bar(report, std::min(spare - kFrame, kLongestBar), colour) : "", colour);
}

Progress::Progress(std::ostream& out, Terminal terminal, std::int64_t logging_steps)
    : out_(out), terminal_(std::move(terminal)), logging_steps_(logging_steps) {
  STRATA_EXPECTS(logging_steps > 0, "logging_steps is positive");
  STRATA_EXPECTS(terminal_.kind == Terminal::Kind::Pipe || terminal_.columns, "a terminal knows its columns");
}

void Progress::step(const engine::StepReport& report) {
  const std::optional<double> eta_seconds = eta(report);
  if (terminal_.kind == Terminal::Kind::Interactive) {
    drawn_ = bar_line(report, eta_seconds, terminal_.columns(), terminal_.colour);
    out_ << kClearLine << drawn_ << std::flush;
  } else if (is_logged_step(report.step, report.total_steps, logging_steps_)) {
    out_ << step_line(report, eta_seconds) << '\n' << std::flush;
  }
}

void Progress::evaluation(const engine::EvalReport& report) {
  message("eval step " + std::to_string(report.step) + " ep " + fixed(report.epoch, 2) + " loss " +
          fixed(report.loss, 3) + " ppl " + three_digits(std::exp(report.loss)) + " tokens " +
          std::to_string(report.tokens) + " in " + clock(report.seconds));
}

void Progress::message(std::string_view text) {
  if (!drawn_.empty()) out_ << kClearLine;
  out_ << text << '\n' << drawn_ << std::flush;
}

void Progress::finish() {
  if (drawn_.empty()) return;
  out_ << '\n' << std::flush;
  drawn_.clear();
}

std::optional<double> Progress::eta(const engine::StepReport& report) {
  // The first step pays for warm-up; a moving average forgets it, and follows a machine that gets busy.
  constexpr double kNewest = 0.2;
  smoothed_seconds_ =
      smoothed_seconds_ ? (1 - kNewest) * *smoothed_seconds_ + kNewest * report.step_seconds : report.step_seconds;
  if (report.total_steps <= 0 || !std::isfinite(*smoothed_seconds_)) return std::nullopt;
  return *smoothed_seconds_ * static_cast<double>(std::max<std::int64_t>(0, report.total_steps - report.step));
}

}  // namespace strata::cli
