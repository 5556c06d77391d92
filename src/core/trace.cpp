#include "core/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "core/error.h"
#include "core/log.h"

namespace strata {
namespace {

// As JSON asks: quotes, backslashes and control characters escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string microseconds(Trace::Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", std::chrono::duration<double, std::micro>(time).count());
  return text;
}

}  // namespace

std::uint32_t Trace::row(const std::string& name, Row kind) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const RowInfo& row) { return row.name == name; });
  if (found != rows_.end()) return static_cast<std::uint32_t>(found - rows_.begin());
  rows_.push_back({name, kind});
  return static_cast<std::uint32_t>(rows_.size() - 1);
}

void Trace::add(Span span) {
  const std::lock_guard lock(mutex_);
  STRATA_EXPECTS(span.row < rows_.size(), "no trace row " + std::to_string(span.row));
  if (spans_.size() < most_spans_) {
    spans_.push_back(std::move(span));
  } else {
    ++left_out_;
  }
}

std::vector<Trace::Span> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Trace::write(const std::filesystem::path& file) const {
  const std::lock_guard lock(mutex_);
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"spans_left_out\":" << left_out_ << "},\"traceEvents\":[\n";
  out << R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"strata"}})";
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    out << ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":" << row
        << ",\"args\":{\"name\":" << quoted(rows_[row].name) << "}}";
  }
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const Span& span = spans_[i];
    const std::string common = ",\"name\":" + quoted(span.name) + ",\"pid\":1,\"tid\":" + std::to_string(span.row);
    const std::string begin = ",\"ts\":" + microseconds(span.begin - start_);
    const std::string arguments = ",\"args\":{\"bytes\":" + std::to_string(span.bytes) + "}}";
    if (rows_[span.row].kind == Row::Sequential) {
      out << ",\n{\"ph\":\"X\"" << common << begin << ",\"dur\":" << microseconds(span.end - span.begin) << arguments;
      continue;
    }
    // Spans that overlap within a row are a pair of asynchronous events each, matched by category and id.
    const std::string pair = common + ",\"cat\":" + quoted(rows_[span.row].name) + ",\"id\":" + std::to_string(i);
    out << ",\n{\"ph\":\"b\"" << pair << begin << arguments;
    out << ",\n{\"ph\":\"e\"" << pair << ",\"ts\":" << microseconds(span.end - start_) << "}";
  }
  out << "\n]}\n";
  if (!out.flush()) throw IoError({errno, "write", file.string(), 0, 0, "the trace is incomplete"});
  if (left_out_ > 0) {
    log::warning("the trace holds the first " + std::to_string(spans_.size()) + " spans; " + std::to_string(left_out_) +
                 " later ones were left out");
  }
}

}  // namespace strata
