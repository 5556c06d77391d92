// Trace: what ran when, as a file that Perfetto and Chrome's tracing page open.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace strata {

// Thread-safe. Whoever records holds a pointer that may be null: no tracing, no cost. Spans beyond `most_spans` are
// counted and left out, so that a long run cannot fill the memory.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  // Of the spans of one row: one after the other, or many at once (requests in flight).
  enum class Row : std::uint8_t { Sequential, Overlapping };
  struct Span {
    std::uint32_t row = 0;
    std::string name;
    Clock::time_point begin;
    Clock::time_point end;
    std::uint64_t bytes = 0;  // moved; 0 = none
  };

  explicit Trace(std::size_t most_spans = 1'000'000) : most_spans_(most_spans), start_(Clock::now()) {}

  // The row of that name, made at its first use.
  std::uint32_t row(const std::string& name, Row kind);
  void add(Span span);
  std::vector<Span> spans() const;
  // Writes the file, in the JSON format of Chrome's trace viewer ("Trace Event Format"), times in microseconds since
  // this object was made. Throws: IoError.
  void write(const std::filesystem::path& file) const;

 private:
  struct RowInfo {
    std::string name;
    Row kind;
  };
  const std::size_t most_spans_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  std::vector<RowInfo> rows_;   // guarded by mutex_
  std::vector<Span> spans_;     // guarded by mutex_
  std::uint64_t left_out_ = 0;  // guarded by mutex_
};

}  // namespace strata
