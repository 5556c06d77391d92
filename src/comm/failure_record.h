// The first failure of a job as it stands in the store: for a launcher, which is no rank.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/rank_watch.h"

namespace strata::comm {

struct JobFailure {
  int exit_code = 0;
  std::string reason;  // as every rank prints it: "rank 2 failed first: ..."
};

// One thread.
class FailureRecord {
 public:
  // Throws: CommError when there is no store.
  explicit FailureRecord(const StoreAddress& store);
  ~FailureRecord();
  FailureRecord(const FailureRecord&) = delete;
  FailureRecord& operator=(const FailureRecord&) = delete;

  // Nothing when no rank has reported one, or the store is gone.
  std::optional<JobFailure> first();
  // The ranks hear of it within a heartbeat, unless another was first. Does nothing when the store is gone.
  void report(const JobFailure& failure);

 private:
  struct Client;
  const std::unique_ptr<Client> client_;
};

}  // namespace strata::comm
