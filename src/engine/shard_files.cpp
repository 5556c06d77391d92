#include "engine/shard_files.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::engine {

void fill_shard(offload::ShardStore& store, offload::ShardId shard, const zero::FlatLayout& layout, std::size_t rank,
                std::size_t elements_per_value, const ElementSource& source) {
  const DType dtype = store.spec(shard).dtype;
  const std::uint64_t shard_first = rank * layout.shard_numel() / elements_per_value;
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) {
    const offload::PieceRange range = store.range({shard, p});
    offload::Pin pin = store.acquire({shard, p}, offload::Access::Write);
    const TensorSpan page{pin.wait().data(), dtype, range.numel};
    std::memset(page.data, 0, page.bytes());
    const std::uint64_t begin = shard_first + range.first;
    const std::uint64_t end = begin + range.numel;
    for (std::size_t i = 0; i < layout.params().size(); ++i) {
      const zero::ParamSlot& slot = layout.params()[i];
      const std::uint64_t slot_begin = slot.offset / elements_per_value;
      const std::uint64_t from = std::max<std::uint64_t>(begin, slot_begin);
      const std::uint64_t to = std::min<std::uint64_t>(end, slot_begin + ceil_div(slot.numel, elements_per_value));
      if (from < to) source(i, from - slot_begin, page.subspan(from - begin, to - from));
    }
  }
  // Uncached pages are written behind our back; the caller may hand the shard to device code next.
  store.drain_uncached();
}

void read_param(offload::ShardStore& store, offload::ShardId shard, const zero::FlatLayout& layout, std::size_t param,
                std::size_t elements_per_value, std::uint64_t first, TensorSpan destination) {
  STRATA_EXPECTS(layout.world() == 1, "a parameter is read whole from one shard");
  const DType dtype = store.spec(shard).dtype;
  STRATA_EXPECTS(destination.dtype == dtype, "the destination has the shard's type");
  const std::uint64_t begin = layout.params()[param].offset / elements_per_value + first;
  for (std::uint64_t done = 0; done < destination.numel;) {
    const std::uint64_t at = begin + done;
    const offload::PieceId piece = store.piece_at(shard, at);
    const offload::PieceRange range = store.range(piece);
    const std::uint64_t n = std::min(destination.numel - done, range.first + range.numel - at);
    const offload::Pin pin = store.acquire(piece, offload::Access::Read);
    const std::byte* source = pin.wait().data() + (at - range.first) * bytes_of(dtype);
    std::memcpy(destination.subspan(done, n).data, source, n * bytes_of(dtype));
    done += n;
  }
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
