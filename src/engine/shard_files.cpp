#include "engine/shard_files.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::engine {

namespace {

// Calls fn(bytes, part) for the parts of `values` that lie in one piece each: where in its page, and which part.
template <typename Fn>
void for_each_piece(offload::ShardStore& store, const ShardSlice& slice, std::size_t param, std::uint64_t first,
                    TensorSpan values, offload::Access access, Fn&& fn) {
  const DType dtype = store.spec(slice.shard).dtype;
  STRATA_EXPECTS(values.dtype == dtype, "values have the shard's type");
  const ValueRange held = values_in(store, slice, param);
  STRATA_EXPECTS(values.numel == 0 || (first >= held.first && first + values.numel <= held.first + held.numel),
                 "the shard holds the values");
  const std::uint64_t begin =
      slice.layout.params()[param].offset / slice.elements_per_value + first - slice.first / slice.elements_per_value;
  for (std::uint64_t done = 0; done < values.numel;) {
    const std::uint64_t at = begin + done;
    const offload::PieceId piece = store.piece_at(slice.shard, at);
    const offload::PieceRange range = store.range(piece);
    const std::uint64_t n = std::min(values.numel - done, range.first + range.numel - at);
    const offload::Pin pin = store.acquire(piece, access);
    fn(pin.wait().data() + (at - range.first) * bytes_of(dtype), values.subspan(done, n));
    done += n;
  }
}

}  // namespace

ValueRange values_in(const zero::FlatLayout& layout, std::size_t param, std::uint64_t first, std::uint64_t numel,
                     std::size_t elements_per_value) {
  const zero::ParamSlot& slot = layout.params()[param];
  const std::uint64_t slot_first = slot.offset / elements_per_value;
  const std::uint64_t slot_end = slot_first + ceil_div(slot.numel, elements_per_value);
  const std::uint64_t from = std::max<std::uint64_t>(slot_first, first / elements_per_value);
  const std::uint64_t to = std::min<std::uint64_t>(slot_end, (first + numel) / elements_per_value);
  return from < to ? ValueRange{from - slot_first, to - from} : ValueRange{};
}

ValueRange values_in_row(const zero::FlatLayout& layout, std::size_t param, std::size_t rank,
                         std::size_t elements_per_value) {
  return values_in(layout, param, rank * layout.shard_numel(), layout.shard_numel(), elements_per_value);
}

ValueRange values_in(const offload::ShardStore& store, const ShardSlice& slice, std::size_t param) {
  const std::uint64_t elements = store.spec(slice.shard).numel * slice.elements_per_value;
  return values_in(slice.layout, param, slice.first, elements, slice.elements_per_value);
}

void fill_shard(offload::ShardStore& store, const ShardSlice& slice, const ElementSource& source) {
  const offload::ShardId shard = slice.shard;
  const DType dtype = store.spec(shard).dtype;
  const std::size_t per_value = slice.elements_per_value;
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) {
    const offload::PieceRange range = store.range({shard, p});
    offload::Pin pin = store.acquire({shard, p}, offload::Access::Write);
    const TensorSpan page{pin.wait().data(), dtype, range.numel};
    std::memset(page.data, 0, page.bytes());
    const std::uint64_t begin = slice.first + range.first * per_value;
    for (std::size_t i = 0; i < slice.layout.params().size(); ++i) {
      const ValueRange values = values_in(slice.layout, i, begin, range.numel * per_value, per_value);
      if (values.numel == 0) continue;
      const std::uint64_t at = slice.layout.params()[i].offset / per_value + values.first - begin / per_value;
      source(i, values.first, page.subspan(at, values.numel));
    }
  }
  // Uncached pages are written behind our back; the caller may hand the shard to device code next.
  store.drain_uncached();
}

void read_param(offload::ShardStore& store, const ShardSlice& slice, std::size_t param, std::uint64_t first,
                TensorSpan destination) {
  for_each_piece(store, slice, param, first, destination, offload::Access::Read,
                 [](const std::byte* page, TensorSpan part) { std::memcpy(part.data, page, part.bytes()); });
}

void write_param(offload::ShardStore& store, const ShardSlice& slice, std::size_t param, std::uint64_t first,
                 TensorSpan source) {
  for_each_piece(store, slice, param, first, source, offload::Access::ReadWrite,
                 [](std::byte* page, TensorSpan part) { std::memcpy(page, part.data, part.bytes()); });
  store.drain_uncached();
}

void read_converted(const hf::TensorCatalog& catalog, const hf::TensorInfo& tensor, std::uint64_t first,
                    TensorSpan destination, std::span<std::byte> buffer, ShardMath& math) {
  const std::size_t element = bytes_of(tensor.dtype);
  if (tensor.dtype == destination.dtype) {
    catalog.read(tensor, first * element, {destination.data, destination.bytes()});
    return;
  }
  in_chunks(destination.numel, buffer.size() / element, [&](std::size_t done, std::size_t n) {
    const std::span<std::byte> raw = buffer.first(n * element);
    catalog.read(tensor, (first + done) * element, raw);
    math.cast(destination.subspan(done, n), {raw.data(), tensor.dtype, n});
  });
}

void require_finite_fp16(const std::string& name, std::uint64_t first, TensorSpan values,
                         const std::function<float(std::size_t)>& original) {
  if (values.dtype != DType::F16) return;
  const std::uint16_t* const begin = values.as<std::uint16_t>();
  const std::uint16_t* const end = begin + values.numel;
  const std::uint16_t* const bad =
      std::find_if(begin, end, [](std::uint16_t half) { return (half & 0x7c00) == 0x7c00; });
  if (bad == end) return;
  const auto at = static_cast<std::size_t>(bad - begin);
  std::ostringstream text;
  text << name << ": element " << first + at << " is " << original(at)
       << ", which fp16 cannot hold (it ends at 65504): train with bf16: true instead of fp16: true";
  throw DataError(text.str());
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t d : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

}  // namespace strata::engine
