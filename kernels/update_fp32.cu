#include "kernels/update_dispatch.h"

extern "C" int strata_cuda_update_fp32(const strata::kernels::UpdateRun* run, void* stream) {
  return strata::kernels::launch_update<strata::kernels::Fp32Moments>(*run, stream);
}
