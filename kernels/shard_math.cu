#include "kernels/shard_math.h"

#include "kernels/convert_body.h"
#include "kernels/sum_lanes_body.h"
#include "kernels/sum_rows_body.h"
#include "kernels/type_dispatch.h"

namespace strata::kernels {
namespace {

template <typename Operation>
int convert(void* destination, int destination_type, const void* source, int source_type, std::int64_t numel,
            void* stream) {
  return with_encoding(destination_type, [&](auto to) {
    return with_encoding(source_type, [&](auto from) {
      const ConvertBody<Operation, decltype(to), decltype(from)> body(destination, source, numel);
      return launch_grid(body, body.items(), stream);
    });
  });
}

}  // namespace
}  // namespace strata::kernels

extern "C" int strata_cuda_cast(void* destination, int destination_type, const void* source, int source_type,
                                std::int64_t numel, void* stream) {
  using namespace strata::kernels;
  return convert<Cast>(destination, destination_type, source, source_type, numel, stream);
}

extern "C" int strata_cuda_accumulate(void* destination, int destination_type, const void* source, int source_type,
                                      std::int64_t numel, void* stream) {
  using namespace strata::kernels;
  return convert<Accumulate>(destination, destination_type, source, source_type, numel, stream);
}

extern "C" int strata_cuda_sum_rows(void* values, int type, std::int64_t row, std::int64_t rows, std::int64_t into,
                                    void* stream) {
  using namespace strata::kernels;
  return with_encoding(type, [&](auto encoding) {
    const SumRowsBody<decltype(encoding)> body(values, row, rows, into);
    return launch_grid(body, body.items(), stream);
  });
}

extern "C" int strata_cuda_sum_lanes(double* lanes, const void* values, int type, std::int64_t numel, void* stream) {
  using namespace strata::kernels;
  return with_encoding(type, [&](auto encoding) {
    const SumLanesBody<decltype(encoding)> body(values, lanes, numel);
    return launch_grid(body, body.items(), stream);
  });
}
