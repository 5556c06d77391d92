#include "comm/quantized_communicator.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace strata::comm {
namespace {

static_assert(kQuantizedChunk % kScaleBlock == 0);

std::size_t sum_bytes(const QuantizedOptions& options) {
  return options.gradients ? kQuantizedChunk * sizeof(float) : 0;
}

std::size_t chunk_message_bytes(const std::optional<BlockCode>& code) {
  return code ? message_bytes(*code, kQuantizedChunk) : 0;
}

// Row r of `full`, from element `first` on.
TensorSpan part_of_row(const TensorSpan& full, std::size_t world, std::size_t r, std::size_t first, std::size_t numel) {
  return full.subspan(r * (full.numel / world) + first, numel);
}

template <typename Fn>
void for_each_chunk(const TensorSpan& full, std::size_t world, Fn&& fn) {
  const std::size_t row = full.numel / world;
  for (std::size_t first = 0; first < row; first += kQuantizedChunk) fn(first, std::min(kQuantizedChunk, row - first));
}

}  // namespace

std::size_t quantized_scratch_bytes(std::size_t world, const QuantizedOptions& options) {
  if (world == 1) return 0;
  return sum_bytes(options) +
         world * std::max(chunk_message_bytes(options.weights), chunk_message_bytes(options.gradients));
}

QuantizedCommunicator::QuantizedCommunicator(Communicator& base, QuantizedOptions options, ShardMath& math,
                                             std::span<std::byte> scratch)
    : ForwardingCommunicator(base),
      options_(options),
      math_(math),
      sum_{scratch.data(), DType::F32, sum_bytes(options) / sizeof(float)},
      coded_(scratch.size() < sum_bytes(options) ? scratch : scratch.subspan(sum_bytes(options))) {
  const std::size_t needed = quantized_scratch_bytes(world(), options);
  STRATA_EXPECTS(scratch.size() >= needed,
                 "scratch of " + std::to_string(needed) + " bytes, got " + std::to_string(scratch.size()));
  STRATA_EXPECTS(reinterpret_cast<std::uintptr_t>(scratch.data()) % alignof(float) == 0, "scratch that is aligned");
}

void QuantizedCommunicator::all_gather(Stream& stream, TensorSpan full) {
  if (passes(options_.weights, full)) return base().all_gather(stream, full);
  const BlockCode code = *options_.weights;
  for_each_chunk(full, world(), [&](std::size_t first, std::size_t numel) {
    const TensorSpan all = messages(code, numel);
    const std::size_t bytes = message_bytes(code, numel);
    stream.launch([=, this] {
      math_.quantize(all.subspan(rank() * bytes, bytes), part_of_row(full, world(), rank(), first, numel), code);
    });
    base().all_gather(stream, all);
    stream.launch([=, this] {
      for (std::size_t r = 0; r < world(); ++r) {
        math_.dequantize(part_of_row(full, world(), r, first, numel), all.subspan(r * bytes, bytes), code);
      }
    });
  });
}

void QuantizedCommunicator::reduce_scatter(Stream& stream, TensorSpan full) {
  if (passes(options_.gradients, full)) return base().reduce_scatter(stream, full);
  const BlockCode code = *options_.gradients;
  for_each_chunk(full, world(), [&](std::size_t first, std::size_t numel) {
    const TensorSpan all = messages(code, numel);
    const std::size_t bytes = message_bytes(code, numel);
    stream.launch([=, this] {
      for (std::size_t r = 0; r < world(); ++r) {
        math_.quantize(all.subspan(r * bytes, bytes), part_of_row(full, world(), r, first, numel), code);
      }
    });
    base().all_to_all(stream, all);
    stream.launch([=, this] {
      const TensorSpan sum = sum_.subspan(0, numel);
      math_.dequantize(sum, all.subspan(0, bytes), code);
      for (std::size_t r = 1; r < world(); ++r) math_.dequantize_add(sum, all.subspan(r * bytes, bytes), code);
      math_.cast(part_of_row(full, world(), rank(), first, numel), sum);
    });
  });
}

bool QuantizedCommunicator::passes(const std::optional<BlockCode>& code, const TensorSpan& full) const {
  STRATA_EXPECTS(full.numel % world() == 0, "rows of equal size");
  const bool is_real = full.dtype == DType::F32 || full.dtype == DType::BF16 || full.dtype == DType::F16;
  return !code || world() == 1 || !is_real;
}

// [world, message of numel elements]
TensorSpan QuantizedCommunicator::messages(BlockCode code, std::size_t numel) const {
  return {coded_.data(), DType::U8, world() * message_bytes(code, numel)};
}

}  // namespace strata::comm
