// strata: trains models whose states do not fit on the accelerator.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "core/error.h"

namespace strata::cli {
namespace {

constexpr const char* kHelp =
    R"(strata trains models whose states do not fit on the accelerator: parameters, gradients and
optimizer states move between device memory, host memory and NVMe while it computes.

usage: strata COMMAND [options]

  train     fine-tune or train from scratch:   strata train --config run.yaml [--learning-rate 2e-5 ...]
  eval      loss and perplexity on a file:     strata eval --model DIR --data FILE
  generate  continue a prompt:                 strata generate --model DIR --prompt "The capital of France is"
  plan      where each byte would go:          strata plan --model DIR --strata.budgets.device 20GiB
  init      random weights for a config.json:  strata init --config config.json --out DIR
  bench     adam | link | nvme | step, against the limit of this machine
  doctor    what this machine can do, what will be slow and why: strata doctor --nvme DIR
  tune      measure a drive, for later runs:   strata tune --nvme DIR

`strata COMMAND --help` explains each. Exit codes: 0 done, 1 internal error, 2 usage or configuration, 3 does not fit,
4 data or model file, 5 I/O, 6 device or collective, 130/143 stopped by a signal after saving.
)";

int dispatch(const std::string& command, const Arguments& arguments) {
  if (command == "train") return run_train(arguments);
  if (command == "eval") return run_eval(arguments);
  if (command == "generate") return run_generate(arguments);
  if (command == "plan") return run_plan(arguments);
  if (command == "init") return run_init(arguments);
  if (command == "bench") return run_bench(arguments);
  if (command == "doctor") return run_doctor(arguments);
  if (command == "tune") return run_tune(arguments);
  if (command == "--help" || command == "-h" || command == "help") {
    std::cout << kHelp;
    return kDone;
  }
  if (command == "--version") {
    std::cout << "strata " << STRATA_VERSION << " (git " << STRATA_GIT_HASH << ", torch " << STRATA_TORCH_VERSION
              << ")\n";
    return kDone;
  }
  throw ConfigError("unknown command " + command +
                    "; the commands are train, eval, generate, plan, init, bench, doctor and tune");
}

// OpenMP's threads spin after work and take the cores that copies, I/O and Adam need; libgomp reads this when it is
// loaded, so it has to be in the environment before the program starts.
void restart_with_passive_openmp(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  ::execv("/proc/self/exe", argv);  // on failure: go on, slower
}

}  // namespace
}  // namespace strata::cli

int main(int argc, char** argv) {
  using namespace strata::cli;
  // A file that would grow beyond `ulimit -f` is then an error of the write, which names it.
  std::signal(SIGXFSZ, SIG_IGN);
  restart_with_passive_openmp(argv);
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  if (argc < 2) {
    std::cerr << kHelp;
    return kUsage;
  }
  return run_reporting_errors([&] { return dispatch(words[1], Arguments(words.begin() + 2, words.end())); }, std::cerr);
}
