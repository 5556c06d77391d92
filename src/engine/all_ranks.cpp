#include "engine/all_ranks.h"

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace strata::engine {
namespace {

using nlohmann::json;

// What travels of a failure: enough to throw one of the same type, which decides the exit code.
json described(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const IoError& error) {
    const IoFailure& io = error.failure();
    return {{"type", "io"},    {"errno", io.errno_value},   {"op", io.op},
            {"path", io.path}, {"offset", io.offset_bytes}, {"bytes", io.bytes},
            {"hint", io.hint}};
  } catch (const OutOfBudget& error) {
    return {{"type", "budget"}, {"text", error.what()}, {"need", error.need_bytes()}, {"have", error.have_bytes()}};
  } catch (const std::bad_alloc& error) {
    return {{"type", "budget"}, {"text", error.what()}, {"need", 0}, {"have", 0}};
  } catch (const CorruptionError& error) {
    return {{"type", "corruption"}, {"text", error.what()}};
  } catch (const DataError& error) {
    return {{"type", "data"}, {"text", error.what()}};
  } catch (const ConfigError& error) {
    return {{"type", "config"}, {"text", error.what()}};
  } catch (const DeviceError& error) {
    return {{"type", "device"}, {"text", error.what()}};
  } catch (const CommError& error) {
    return {{"type", "comm"}, {"text", error.what()}};
  } catch (const std::exception& error) {
    return {{"type", "other"}, {"text", error.what()}};
  } catch (...) {
    return {{"type", "other"}, {"text", "failed with something that is no exception"}};
  }
}

[[noreturn]] void throw_described(const json& failure, std::size_t rank) {
  const std::string who = "rank " + std::to_string(rank) + ": ";
  const std::string type = failure.at("type");
  if (type == "io") {
    throw IoError({failure.at("errno").get<int>(), who + failure.at("op").get<std::string>(), failure.at("path"),
                   failure.at("offset").get<std::uint64_t>(), failure.at("bytes").get<std::uint64_t>(),
                   failure.at("hint")});
  }
  const std::string text = who + failure.at("text").get<std::string>();
  if (type == "budget") throw OutOfBudget(text, failure.at("need"), failure.at("have"));
  if (type == "corruption") throw CorruptionError(text);
  if (type == "data") throw DataError(text);
  if (type == "config") throw ConfigError(text);
  if (type == "device") throw DeviceError(text);
  if (type == "comm") throw CommError(text);
  throw Error(text);
}

}  // namespace

std::string broadcast_text(Communicator& comm, std::string text, std::size_t root) {
  std::uint64_t bytes = text.size();
  comm.broadcast(std::as_writable_bytes(std::span(&bytes, 1)), root);
  text.resize(bytes);
  comm.broadcast(std::as_writable_bytes(std::span(text)), root);
  return text;
}

bool on_any_rank(Communicator& comm, bool here) {
  double ranks = here ? 1 : 0;
  comm.all_reduce_sum({&ranks, 1});
  return ranks > 0;
}

void on_every_rank(Communicator& comm, const char* what, const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (const std::filesystem::filesystem_error& error) {  // which callers that catch Error would miss
    failure = std::make_exception_ptr(IoError({error.code().value(), what, error.path1().string(), 0, 0, {}}));
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<double> failed(comm.world());
  failed[comm.rank()] = failure ? 1 : 0;
  comm.all_gather_values(failed);
  const auto first = static_cast<std::size_t>(std::find(failed.begin(), failed.end(), 1.0) - failed.begin());
  if (first == comm.world()) return;
  std::string text;
  // Paths need not be UTF-8.
  if (first == comm.rank()) text = described(failure).dump(-1, ' ', false, json::error_handler_t::replace);
  text = broadcast_text(comm, std::move(text), first);
  if (failure) std::rethrow_exception(failure);
  throw_described(json::parse(text), first);
}

void on_first_rank(Communicator& comm, const char* what, const std::function<void()>& work) {
  on_every_rank(comm, what, [&] {
    if (comm.rank() == 0) work();
  });
}

}  // namespace strata::engine
