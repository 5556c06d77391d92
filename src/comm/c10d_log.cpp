#include "comm/c10d_log.h"

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>

#include <cstdlib>

namespace strata::comm {

void quieten_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
}

}  // namespace strata::comm
