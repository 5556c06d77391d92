// Whether NCCL could be used here, without making a communicator.
#pragma once

#include <string>

namespace strata::comm {

// The plug-in: the file that the environment variable STRATA_NCCL_PLUGIN names, else libstrata_nccl.so as plugin_file()
// in core/plugin_file.h looks for it.
std::string nccl_plugin_file();

struct NcclProbe {
  bool loads = false;        // the plug-in, and with it NCCL and the CUDA libraries of torch
  std::string version = "";  // "2.28.9"; empty where NCCL does not say
  std::string why_not = "";  // where it does not load
};

// Loads the plug-in, which is never unloaded: some hundred megabytes of address space.
NcclProbe probe_nccl();

}  // namespace strata::comm
