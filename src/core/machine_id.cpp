#include "core/machine_id.h"

#include <fstream>

namespace strata {

std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace strata
