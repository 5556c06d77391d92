#include "cli/exit_code.h"

#include <filesystem>
#include <new>
#include <system_error>

#include "core/error.h"

namespace strata::cli {
namespace {

void report(const std::exception& failure, std::string_view prefix, std::ostream& err) {
  err << prefix << failure.what() << '\n';
  try {
    std::rethrow_if_nested(failure);
  } catch (const std::exception& cause) {
    report(cause, "  caused by: ", err);
  } catch (...) {
    err << "  caused by: an exception of an unknown type\n";
  }
}

}  // namespace

int exit_code_of(std::exception_ptr failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const ConfigError&) {
    return kUsage;
  } catch (const OutOfBudget&) {
    return kDoesNotFit;
  } catch (const std::bad_alloc&) {
    return kDoesNotFit;
  } catch (const DataError&) {
    return kBadData;
  } catch (const IoError&) {
    return kIoFailed;
  } catch (const std::system_error&) {  // std::filesystem and std::thread
    return kIoFailed;
  } catch (const DeviceError&) {
    return kDeviceFailed;
  } catch (const CommError&) {
    return kDeviceFailed;
  } catch (...) {
    return kInternalError;
  }
}

int exit_code_of_signal(int signal) {
  return signal == 0 ? kDone : 128 + signal;
}

int run_reporting_errors(const std::function<int()>& body, std::ostream& err) {
  try {
    return body();
  } catch (const std::exception& failure) {
    report(failure, "strata: error: ", err);
    return exit_code_of(std::current_exception());
  } catch (...) {
    err << "strata: error: an exception of an unknown type\n";
    return kInternalError;
  }
}

}  // namespace strata::cli
