// Between files and shards: weights in, weights and states out, a page at a time.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/shard_optimizer.h"
#include "hf/safetensors.h"
#include "offload/shard_store.h"
#include "zero/flat_layout.h"

namespace strata::engine {

// Elements that are converted at once: a whole number of blocks of 8-bit states.
inline constexpr std::size_t kConversionChunk = 65536;

// Calls fn(done, count) for runs of at most `most` of `numel` elements, in order.
template <typename Fn>
void in_chunks(std::size_t numel, std::size_t most, Fn&& fn) {
  for (std::size_t done = 0; done < numel; done += most) fn(done, std::min(most, numel - done));
}

// A shard of a group, and what of the group's flat layout it holds: the elements from `first` on.
struct ShardSlice {
  const zero::FlatLayout& layout;
  offload::ShardId shard;
  std::uint64_t first = 0;
  std::size_t elements_per_value = 1;  // that share a value (StateSpec)
};

// Values of one parameter.
struct ValueRange {
  std::uint64_t first = 0;
  std::uint64_t numel = 0;
};

// Those of parameter `param` that belong to elements [first, first + numel) of the layout.
ValueRange values_in(const zero::FlatLayout& layout, std::size_t param, std::uint64_t first, std::uint64_t numel,
                     std::size_t elements_per_value = 1);
// In the row of a rank. Rows of all ranks make up the whole parameter, so a rank writes its own to files and tells it
// to others.
ValueRange values_in_row(const zero::FlatLayout& layout, std::size_t param, std::size_t rank,
                         std::size_t elements_per_value = 1);
ValueRange values_in(const offload::ShardStore& store, const ShardSlice& slice, std::size_t param);

// Fills `destination` (values of one parameter from value `first` on, in the shard's type). Called in ascending order.
using ElementSource = std::function<void(std::size_t param, std::uint64_t first, TensorSpan destination)>;

// Writes every element of the shard: parameters from `source`, padding with zeros.
void fill_shard(offload::ShardStore& store, const ShardSlice& slice, const ElementSource& source);

// Copies values of parameter `param` from value `first` on out of the shard, or into it. Requires: the shard holds
// them; they have its type.
void read_param(offload::ShardStore& store, const ShardSlice& slice, std::size_t param, std::uint64_t first,
                TensorSpan destination);
void write_param(offload::ShardStore& store, const ShardSlice& slice, std::size_t param, std::uint64_t first,
                 TensorSpan source);

// Reads elements of a tensor in a file and converts them to the destination's type, through `buffer`, which bounds the
// memory used.
void read_converted(const hf::TensorCatalog& catalog, const hf::TensorInfo& tensor, std::uint64_t first,
                    TensorSpan destination, std::span<std::byte> buffer, ShardMath& math);

// Passes over values that are finite; other types than fp16 are not looked at. `original(i)`: values[i] before it was
// converted. Throws: DataError with `name`, the element's number in the tensor, where values[0] is number `first`, and
// what it was.
void require_finite_fp16(const std::string& name, std::uint64_t first, TensorSpan values,
                         const std::function<float(std::size_t)>& original);

// The shape of a tensor as "[49152, 576]".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace strata::engine
