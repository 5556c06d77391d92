// The sum of rows into one of them, as one thread of a grid performs it. C++17, for device and host.
#pragma once

#include <cstdint>

#include "core/encodings.h"
#include "kernels/group.h"

namespace strata::kernels {

template <typename Encoding>
struct SumRowsBody {
  using Stored = typename Encoding::Stored;
  static constexpr int kGroup = group_size(sizeof(Stored));
  static constexpr int kAhead = 4;  // rows whose loads are on their way at once

  Stored* values;  // [rows, shape.numel]
  std::int64_t rows;
  std::int64_t into;
  GroupShape<kGroup> shape;

  // All rows are aligned alike where the first two are: each begins as far behind the one before.
  SumRowsBody(void* of, std::int64_t row, std::int64_t count, std::int64_t target)
      : values(static_cast<Stored*>(of)),
        rows(count),
        into(target),
        shape(shape_of<kGroup>(
            row, {{of, sizeof(Stored)}, {count > 1 ? static_cast<Stored*>(of) + row : nullptr, sizeof(Stored)}})) {}

  std::int64_t items() const { return shape.groups; }

  // Only this thread writes the group, after it has read it in all rows.
  STRATA_HOST_DEVICE void operator()(std::int64_t thread, std::int64_t threads) const {
    for (std::int64_t group = thread; group < shape.groups; group += threads) sum(shape.first_of(group));
  }

 private:
  using Values = Group<Stored, kGroup>;

  STRATA_HOST_DEVICE void sum(std::int64_t first) const {
    const unsigned members = shape.members_from(first);
    const bool whole = shape.is_whole(members);
    Values loaded[kAhead];
    loaded[0].load(values + first, members, whole);
    float sums[kGroup];
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) sums[k] = Encoding::decode(loaded[0].values[k]);
    for (std::int64_t row = 1; row < rows; row += kAhead) {
      STRATA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        if (row + a < rows) loaded[a].load(values + (row + a) * shape.numel + first, members, whole);
      }
      STRATA_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        if (row + a < rows) add(sums, loaded[a]);
      }
    }
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) loaded[0].values[k] = Encoding::encode(sums[k]);
    loaded[0].store(values + into * shape.numel + first, members, whole);
  }

  STRATA_HOST_DEVICE static void add(float (&sums)[kGroup], const Values& row) {
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) sums[k] += Encoding::decode(row.values[k]);
  }
};

}  // namespace strata::kernels
