// Casts and sums of two arrays as one thread of a grid performs them. C++17, for device and host.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/encodings.h"
#include "kernels/group.h"

namespace strata::kernels {

// destination = source.
struct Cast {
  static constexpr bool kReadsDestination = false;
  template <typename To, typename From>
  STRATA_HOST_DEVICE static typename To::Stored apply(typename To::Stored, typename From::Stored from) {
    // Of one type a copy, not a decode and encode, which would make signalling NaNs quiet.
    if constexpr (std::is_same_v<To, From>) {
      return from;
    } else {
      return To::encode(From::decode(from));
    }
  }
};

// destination += source.
struct Accumulate {
  static constexpr bool kReadsDestination = true;
  template <typename To, typename From>
  STRATA_HOST_DEVICE static typename To::Stored apply(typename To::Stored to, typename From::Stored from) {
    return To::encode(To::decode(to) + From::decode(from));
  }
};

template <typename Operation, typename To, typename From>
struct ConvertBody {
  using ToStored = typename To::Stored;
  using FromStored = typename From::Stored;
  static constexpr int kGroup =
      group_size(sizeof(ToStored) > sizeof(FromStored) ? sizeof(ToStored) : sizeof(FromStored));
  static constexpr int kAhead = 2;

  struct Loaded {
    Group<ToStored, kGroup> to;
    Group<FromStored, kGroup> from;
  };

  ToStored* destination;
  const FromStored* source;
  GroupShape<kGroup> shape;

  ConvertBody(void* to, const void* from, std::int64_t numel)
      : destination(static_cast<ToStored*>(to)),
        source(static_cast<const FromStored*>(from)),
        shape(shape_of<kGroup>(numel, {{to, sizeof(ToStored)}, {from, sizeof(FromStored)}})) {}

  std::int64_t items() const { return (shape.groups + kAhead - 1) / kAhead; }

  STRATA_HOST_DEVICE void operator()(std::int64_t thread, std::int64_t threads) const {
    run_groups<kAhead>(*this, shape.groups, thread, threads);
  }

  STRATA_HOST_DEVICE Loaded load(std::int64_t group) const {
    const std::int64_t first = shape.first_of(group);
    const unsigned members = shape.members_from(first);
    Loaded loaded;
    loaded.from.load(source + first, members, shape.is_whole(members));
    if constexpr (Operation::kReadsDestination) loaded.to.load(destination + first, members, shape.is_whole(members));
    return loaded;
  }

  STRATA_HOST_DEVICE void store(std::int64_t group, Loaded loaded) const {
    const std::int64_t first = shape.first_of(group);
    const unsigned members = shape.members_from(first);
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      const ToStored to = Operation::kReadsDestination ? loaded.to.values[k] : ToStored{};
      loaded.to.values[k] = Operation::template apply<To, From>(to, loaded.from.values[k]);
    }
    loaded.to.store(destination + first, members, shape.is_whole(members));
  }
};

}  // namespace strata::kernels
