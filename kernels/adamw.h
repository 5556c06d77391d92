// The entry points of the CUDA plug-in's AdamW. Plain C names, found with dlsym, so that the program starts without
// CUDA.
#pragma once

#include "kernels/adamw_body.h"

extern "C" {

// Queues the update of one run on `stream` (a cudaStream_t) of the current device; arrays lie in device memory.
// `param_type` and `grad_type` are kIndex of their encodings
// (core/encodings.h); gradients have the parameter's type or are fp32. A run without elements queues nothing.
// Decay and no-decay segments are runs of their own; padding between them is never passed.
// Returns a cudaError_t: 0 when the work was queued. Errors of the work itself appear on the stream.
int strata_cuda_adamw(const strata::UpdateConstants* constants, const strata::kernels::AdamwRun* run, int param_type,
                      int grad_type, void* stream);

// The text for a value returned above. Static storage.
const char* strata_cuda_error_string(int error);

// Number of usable devices; negative cudaError_t when the driver is missing or refuses.
int strata_cuda_device_count();
}
