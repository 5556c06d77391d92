// The commands of `strata`: one source file each. Arguments exclude the program and the command; the result is the exit
// code.
#pragma once

#include <string>
#include <vector>

namespace strata::cli {

using Arguments = std::vector<std::string>;

int run_train(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_bench_step(const Arguments& arguments);  // of run_bench
int run_doctor(const Arguments& arguments);
int run_init(const Arguments& arguments);
int run_tune(const Arguments& arguments);

}  // namespace strata::cli
