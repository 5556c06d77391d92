#include "kernels/update_block8_body.h"
#include "kernels/update_dispatch.h"

extern "C" int strata_cuda_update_block8(const strata::kernels::UpdateRun* run, void* stream) {
  using namespace strata::kernels;
  return with_storage(*run, [&](auto storage) {
    const UpdateBlock8Body<decltype(storage)> body(*run);
    return launch_warps(body, body.blocks(), stream);
  });
}
