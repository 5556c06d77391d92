// Who this process is among the ranks of a job, and where they meet: what a launcher tells it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace strata::comm {

struct RankInfo {
  std::size_t rank = 0;
  std::size_t world = 1;
  std::size_t local_rank = 0;  // among the ranks on this machine
  std::size_t local_world = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string store_prefix;  // what keys of the store begin with, so that a restarted job sees none of the one before
  bool agent_store = false;  // the launcher already runs the TCPStore (torchrun, strata --nproc); else rank 0 does
};

}  // namespace strata::comm
