// A collective failed because another rank's end of a connection is closed.
#pragma once

#include "core/error.h"

namespace strata::comm {

// Whoever closed it knows why, so that reason is worth waiting for.
class ConnectionLost : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace strata::comm
