#include "kernels/update_dispatch.h"

extern "C" int strata_cuda_update_bf16(const strata::kernels::UpdateRun* run, void* stream) {
  return strata::kernels::launch_update<strata::kernels::Bf16Moments>(*run, stream);
}
