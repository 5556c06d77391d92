#include <type_traits>

#include "kernels/block_codes_body.h"
#include "kernels/shard_math.h"
#include "kernels/type_dispatch.h"

namespace strata::kernels {
namespace {

// Returns fn(the code as a constant), or the error for an unknown one.
template <typename Fn>
int with_code(int code, Fn&& fn) {
  if (code == static_cast<int>(BlockCode::Int8)) return fn(std::integral_constant<BlockCode, BlockCode::Int8>{});
  if (code == static_cast<int>(BlockCode::Int4)) return fn(std::integral_constant<BlockCode, BlockCode::Int4>{});
  return kInvalidValue;
}

}  // namespace
}  // namespace strata::kernels

extern "C" int strata_cuda_quantize(void* message, const void* values, int type, std::int64_t numel, int code,
                                    void* stream) {
  using namespace strata::kernels;
  return with_code(code, [&](auto constant) {
    return with_encoding(type, [&](auto encoding) {
      const QuantizeBody<decltype(constant)::value, decltype(encoding)> body(message, values, numel);
      return launch_warps(body, body.blocks(), stream);
    });
  });
}

extern "C" int strata_cuda_dequantize(void* values, int type, const void* message, std::int64_t numel, int code,
                                      void* stream) {
  using namespace strata::kernels;
  return with_code(code, [&](auto constant) {
    return with_encoding(type, [&](auto encoding) {
      const DequantizeBody<decltype(constant)::value, decltype(encoding), false> body(values, message, numel);
      return launch_grid(body, body.items(), stream);
    });
  });
}

extern "C" int strata_cuda_dequantize_add(float* sum, const void* message, std::int64_t numel, int code, void* stream) {
  using namespace strata::kernels;
  return with_code(code, [&](auto constant) {
    const DequantizeBody<decltype(constant)::value, strata::encoding::F32, true> body(sum, message, numel);
    return launch_grid(body, body.items(), stream);
  });
}
