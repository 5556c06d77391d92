#include "comm/failure_record.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/c10d_text.h"
#include "comm/watch_keys.h"
#include "core/error.h"
#include "core/log.h"

namespace strata::comm {

struct FailureRecord::Client {
  std::string key;
  c10::intrusive_ptr<c10d::Store> store;
};

FailureRecord::FailureRecord(const StoreAddress& store) : client_(std::make_unique<Client>()) {
  client_->key = failure_key(store.prefix);
  c10d::TCPStoreOptions options;
  options.port = store.port;
  options.waitWorkers = false;
  try {
    client_->store = c10::make_intrusive<c10d::TCPStore>(store.host, options);
  } catch (const std::exception& e) {
    throw CommError("no store at " + store.host + ":" + std::to_string(store.port) + ": " + brief(e.what()));
  }
}

FailureRecord::~FailureRecord() = default;

std::optional<JobFailure> FailureRecord::first() {
  try {
    // A get of a key that is not there would wait for it.
    if (!client_->store->check({client_->key})) return std::nullopt;
    const std::string text = client_->store->get_to_str(client_->key);
    if (text == kNoFailure) return std::nullopt;
    return JobFailure{std::stoi(text), text.substr(text.find(' ') + 1)};
  } catch (const std::exception& e) {
    log::debug(std::string("the store does not say who failed first: ") + brief(e.what()));
    return std::nullopt;
  }
}

void FailureRecord::report(const JobFailure& failure) {
  try {
    client_->store->compareSet(client_->key, std::string(), std::string(kNoFailure));
    client_->store->compareSet(client_->key, std::string(kNoFailure),
                               std::to_string(failure.exit_code) + " " + failure.reason);
  } catch (const std::exception& e) {
    log::debug(std::string("the ranks do not hear who failed first: ") + brief(e.what()));
  }
}

}  // namespace strata::comm
