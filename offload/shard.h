// What a shard is, and how code asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "offload/tier.h"

namespace strata::offload {

enum class ShardKind : std::uint8_t { Param, Grad, OptimState };

struct ShardId {
  std::uint32_t index = 0;
  bool operator==(const ShardId&) const = default;
};

struct ShardSpec {
  std::string name;  // "model.layers.3/exp_avg"; appears in errors
  ShardKind kind = ShardKind::Param;
  DType dtype = DType::F32;
  std::uint64_t numel = 0;
  TierKind home = TierKind::Host;
  // Of the first elements, those at home in host memory whatever `home` says: a share of the shard (shares.h). A
  // multiple of what a 4096-byte block holds, or numel. ShardStore sets it to numel where `home` is Host.
  std::uint64_t host_numel = 0;
  // An earlier shard on the same tier (device or host) in whose home this one lies, from that one's element `first` on:
  // a window of it, or one that uses the home in turn with it. Whoever writes one changes the other; their users order
  // that among themselves.
  struct Within {
    ShardId shard;
    std::uint64_t first = 0;
  };
  std::optional<Within> within = std::nullopt;
};

// A shard is used in pieces of at most one slot each: see PieceGrid.
struct PieceId {
  ShardId shard;
  std::uint32_t piece = 0;
  bool operator==(const PieceId&) const = default;
};

// Write: the contents before do not matter, nothing is read.
enum class Access : std::uint8_t { Read, Write, ReadWrite };

constexpr bool reads(Access access) {
  return access != Access::Write;
}
constexpr bool writes(Access access) {
  return access != Access::Read;
}

}  // namespace strata::offload
