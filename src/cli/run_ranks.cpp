#include "cli/run_ranks.h"

#include "cli/launcher.h"
#include "comm/failure_record.h"
#include "comm/store_server.h"

namespace strata::cli {

int run_ranks(const std::string& command, const Arguments& arguments, std::size_t ranks) {
  comm::StoreServer store("127.0.0.1");
  comm::FailureRecord record({.host = "127.0.0.1", .port = store.port(), .prefix = std::string(kFirstStartPrefix)});
  LaunchOptions options;
  options.argv = {"strata", command};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = environment_of_process();
  options.ranks = ranks;
  options.store_port = store.port();
  options.failures.first = [&]() -> std::optional<ReportedFailure> {
    const auto failure = record.first();
    if (!failure) return std::nullopt;
    return ReportedFailure{failure->exit_code, failure->reason};
  };
  options.failures.report = [&](const ReportedFailure& failure) { record.report({failure.exit_code, failure.reason}); };
  return launch_ranks(options);
}

}  // namespace strata::cli
