// [Note: block codes] as threads of a grid perform them: 4 elements at a time, whose codes are 4 or 2 bytes and so are
// aligned wherever a message may lie. C++17, for device and host.
#pragma once

#include <cstdint>

#include "core/block_codes.h"
#include "core/encodings.h"
#include "kernels/group.h"

namespace strata::kernels {

inline constexpr int kCodedGroup = 4;

// The codes of a group in registers.
template <BlockCode kCode>
struct GroupCodes {
  static constexpr int kBytes = static_cast<int>(code_bytes(kCode, kCodedGroup));
  Group<std::uint8_t, kBytes> bytes;

  // The bytes that hold an element.
  STRATA_HOST_DEVICE static unsigned members_of(unsigned elements) {
    if constexpr (kCode == BlockCode::Int8) {
      return elements;
    } else {
      return (elements & 1u) | (elements >> 1 & 2u);
    }
  }
  STRATA_HOST_DEVICE void load(const std::uint8_t* codes, std::int64_t first, unsigned elements) {
    bytes.load(codes + offset_of(first), members_of(elements), elements == 0xfu);
  }
  STRATA_HOST_DEVICE void store(std::uint8_t* codes, std::int64_t first, unsigned elements) const {
    bytes.store(codes + offset_of(first), members_of(elements), elements == 0xfu);
  }
  STRATA_HOST_DEVICE void pack(const std::int32_t (&values)[kCodedGroup]) {
    STRATA_UNROLL
    for (int k = 0; k < kBytes; ++k) {
      if constexpr (kCode == BlockCode::Int8) {
        bytes.values[k] = static_cast<std::uint8_t>(values[k]);
      } else {
        bytes.values[k] = pack_codes(values[2 * k], values[2 * k + 1]);
      }
    }
  }
  STRATA_HOST_DEVICE std::int32_t code(int k) const {
    if constexpr (kCode == BlockCode::Int8) {
      return static_cast<std::int8_t>(bytes.values[k]);
    } else {
      return k % 2 == 0 ? low_code(bytes.values[k / 2]) : high_code(bytes.values[k / 2]);
    }
  }

 private:
  STRATA_HOST_DEVICE static std::int64_t offset_of(std::int64_t first) {
    return static_cast<std::int64_t>(code_bytes(kCode, static_cast<std::size_t>(first)));
  }
};

// A message's parts.
template <BlockCode kCode>
struct MessageOf {
  std::uint8_t* codes;
  float* scales;

  MessageOf(void* message, std::int64_t numel)
      : codes(static_cast<std::uint8_t*>(message)),
        scales(reinterpret_cast<float*>(codes + scales_offset(kCode, static_cast<std::size_t>(numel)))) {}
};

// A warp owns a block of 256 elements, 8 per lane.
template <BlockCode kCode, typename Encoding>
struct QuantizeBody {
  using Stored = typename Encoding::Stored;
  static constexpr int kGroups = 8 / kCodedGroup;  // of a lane in a block, one behind all lanes' other

  struct Lane {
    float values[kGroups][kCodedGroup];
  };

  MessageOf<kCode> message;
  const Stored* values;
  GroupShape<kCodedGroup> shape;

  QuantizeBody(void* to, const void* from, std::int64_t numel)
      : message(to, numel),
        values(static_cast<const Stored*>(from)),
        shape(groups_from<kCodedGroup>(numel, 0, aligned_from<kCodedGroup>({{from, sizeof(Stored)}}, 0))) {}

  std::int64_t blocks() const { return (shape.numel + kBlock - 1) / kBlock; }

  STRATA_HOST_DEVICE Largest share(std::int64_t block, int lane, Lane& state) const {
    Largest largest;
    STRATA_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      const std::int64_t first = first_of(block, lane, j);
      const unsigned members = shape.members_from(first);
      Group<Stored, kCodedGroup> group;
      group.load(values + first, members, shape.is_whole(members));
      STRATA_UNROLL
      for (int k = 0; k < kCodedGroup; ++k) {
        state.values[j][k] = Encoding::decode(group.values[k]);
        const std::uint32_t magnitude = float_bits(state.values[j][k]) & 0x7fffffffu;
        if (magnitude > largest.first) largest.first = magnitude;
      }
    }
    return largest;
  }

  STRATA_HOST_DEVICE void finish(std::int64_t block, int lane, const Lane& state, Largest largest) const {
    const BlockScale scale = block_scale(largest.first);
    STRATA_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      const std::int64_t first = first_of(block, lane, j);
      std::int32_t codes[kCodedGroup];
      STRATA_UNROLL
      for (int k = 0; k < kCodedGroup; ++k) {
        codes[k] = encode_in_block(state.values[j][k], scale.inverse, largest_code(kCode));
      }
      GroupCodes<kCode> packed;
      packed.pack(codes);
      packed.store(message.codes, first, shape.members_from(first));
    }
    if (lane != 0) return;
    message.scales[block] = scale.stored;
    if ((block + 1) * kBlock >= shape.numel) clear_gap();
  }

 private:
  static constexpr std::int64_t kBlock = static_cast<std::int64_t>(kScaleBlock);
  static_assert(kBlock == kWarp * kCodedGroup * kGroups, "a block fills a warp");

  STRATA_HOST_DEVICE static std::int64_t first_of(std::int64_t block, int lane, int j) {
    return block * kBlock + (j * kWarp + lane) * kCodedGroup;
  }
  // The bytes between the codes and the scales.
  STRATA_HOST_DEVICE void clear_gap() const {
    const std::size_t numel = static_cast<std::size_t>(shape.numel);
    for (std::size_t i = code_bytes(kCode, numel); i < scales_offset(kCode, numel); ++i) message.codes[i] = 0;
  }
};

// values = the message, or with kAdd values += the message.
template <BlockCode kCode, typename Encoding, bool kAdd>
struct DequantizeBody {
  using Stored = typename Encoding::Stored;
  static constexpr int kAhead = 2;

  struct Loaded {
    GroupCodes<kCode> codes;
    float scale;
    Group<Stored, kCodedGroup> values;
  };

  Stored* values;
  MessageOf<kCode> message;
  GroupShape<kCodedGroup> shape;

  // The message is only read.
  DequantizeBody(void* to, const void* from, std::int64_t numel)
      : values(static_cast<Stored*>(to)),
        message(const_cast<void*>(from), numel),
        shape(groups_from<kCodedGroup>(numel, 0, aligned_from<kCodedGroup>({{to, sizeof(Stored)}}, 0))) {}

  std::int64_t items() const { return (shape.groups + kAhead - 1) / kAhead; }

  STRATA_HOST_DEVICE void operator()(std::int64_t thread, std::int64_t threads) const {
    run_groups<kAhead>(*this, shape.groups, thread, threads);
  }

  STRATA_HOST_DEVICE Loaded load(std::int64_t group) const {
    const std::int64_t first = shape.first_of(group);
    const unsigned members = shape.members_from(first);
    Loaded loaded;
    loaded.codes.load(message.codes, first, members);
    loaded.scale = message.scales[first / static_cast<std::int64_t>(kScaleBlock)];
    if constexpr (kAdd) loaded.values.load(values + first, members, shape.is_whole(members));
    return loaded;
  }

  STRATA_HOST_DEVICE void store(std::int64_t group, Loaded loaded) const {
    const std::int64_t first = shape.first_of(group);
    const unsigned members = shape.members_from(first);
    STRATA_UNROLL
    for (int k = 0; k < kCodedGroup; ++k) {
      const float value = decode_in_block(loaded.codes.code(k), loaded.scale, code_step(kCode));
      loaded.values.values[k] = Encoding::encode(kAdd ? Encoding::decode(loaded.values.values[k]) + value : value);
    }
    loaded.values.store(values + first, members, shape.is_whole(members));
  }
};

}  // namespace strata::kernels
