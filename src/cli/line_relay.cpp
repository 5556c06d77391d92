#include "cli/line_relay.h"

namespace strata::cli {
namespace {

constexpr std::size_t kLongestLine = 1 << 20;  // then it is cut, so that a process cannot fill this one's memory

}  // namespace

void LineRelay::put_line(std::string& out, std::string_view line) const {
  if (prefix_.empty()) {
    out.append(line);
    return;
  }
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (const std::size_t drawn_over = line.rfind('\r'); drawn_over != std::string_view::npos) {
    line.remove_prefix(drawn_over + 1);
  }
  out.append(prefix_).append(line).append("\n");
}

std::string LineRelay::take(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view part = bytes.substr(0, whole ? end + 1 : bytes.size());
    open_line_.append(part);
    bytes.remove_prefix(part.size());
    if (!whole && open_line_.size() < kLongestLine) break;
    put_line(out, open_line_);
    open_line_.clear();
  }
  return out;
}

std::string LineRelay::finish() {
  std::string out;
  if (!open_line_.empty()) put_line(out, open_line_);
  open_line_.clear();
  return out;
}

}  // namespace strata::cli
