// Runs a helper program and collects what it prints.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::cli {

struct ChildResult {
  int exit_code = 0;  // 128 + signal when a signal ended it
  std::string out;    // its standard output; standard error goes where ours goes
};

// argv[0] is looked up on PATH when it has no slash. Throws: IoError when it cannot be started.
ChildResult run_child(const std::vector<std::string>& argv);

// The Python interpreter and the folder of Strata's Python tools: from STRATA_PYTHON and STRATA_TOOLS, else as built.
std::string python_program();
std::filesystem::path tools_folder();

}  // namespace strata::cli
