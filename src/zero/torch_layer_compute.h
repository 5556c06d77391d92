// The LayerCompute of torch: Layers over tensors that view gathered memory, recomputed in backward.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "core/dtype.h"
#include "zero/layer_compute.h"

namespace strata::zero {

class Model;

// Computes on the host or, with `cuda_device`, on that GPU: then gathered weights and flat gradients lie in its memory,
// and calls come from threads on which torch's current stream is the one that orders them. `type` is that of the
// gathered weights and of the flat gradients, `world` the ranks of the layouts and `row_parts` the parts of their rows.
// Of an open micro-batch it holds the inputs of the layers, the graphs of keep_graphs(), and during backward() one
// layer's graph. Requires: `type` is F32, BF16 or F16; the model was made for it.
std::unique_ptr<LayerCompute> make_torch_layer_compute(std::unique_ptr<Model> model, DType type, std::size_t world,
                                                       std::size_t row_parts = 1,
                                                       std::optional<int> cuda_device = std::nullopt);

}  // namespace strata::zero
