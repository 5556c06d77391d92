// Which NCCL the plug-in was compiled with, and which it finds.
#pragma once

#include <cstdint>
#include <string>

namespace strata::comm {

struct NcclVersion {
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
};

// As torch::cuda::nccl::version() says it.
inline NcclVersion version_from_torch(std::uint64_t code) {
  return {code >> 32, code >> 16 & 0xFFFF};
}
// As ncclGetVersion() says it, since 2.9.
inline NcclVersion version_from_nccl(int code) {
  return {static_cast<std::uint64_t>(code) / 10000, static_cast<std::uint64_t>(code) / 100 % 100};
}

// Why `compiled`, of nccl.h, does not go with `found`; empty where it does. Structures of nccl.h are part of c10d's
// own, and NCCL looks into them, so other versions would read memory that nobody has written.
inline std::string refusal(const NcclVersion& compiled, const NcclVersion& found, const std::string& whose) {
  if (compiled.major == found.major && compiled.minor == found.minor) return "";
  const auto text = [](const NcclVersion& version) {
    return std::to_string(version.major) + "." + std::to_string(version.minor);
  };
  return "the CUDA plug-in was built with nccl.h of NCCL " + text(compiled) + ", but " + whose + " is " + text(found) +
         ". Build it with the nccl.h that comes beside torch (the package nvidia-nccl), and keep other versions of "
         "libnccl.so.2 out of LD_LIBRARY_PATH";
}

}  // namespace strata::comm
