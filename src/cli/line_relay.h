// Output of several processes on one stream, in whole lines.
#pragma once

#include <string>
#include <string_view>

namespace strata::cli {

// Takes the bytes of one process as they come and gives whole lines on, each behind `prefix`. Of a line that was drawn
// over with carriage returns what a terminal would show at its end remains. One thread.
class LineRelay {
 public:
  // An empty prefix leaves every byte as it is.
  explicit LineRelay(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` complete.
  std::string take(std::string_view bytes);
  // What is left of an unfinished line, when no more comes.
  std::string finish();

 private:
  void put_line(std::string& out, std::string_view line) const;

  std::string prefix_;
  std::string open_line_;
};

}  // namespace strata::cli
