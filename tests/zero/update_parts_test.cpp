#include "zero/update_parts.h"

#include <gtest/gtest.h>

namespace strata::zero {
namespace {

using offload::Access;
using offload::TierKind;

// bf16 weights and gradients with an fp32 master and two moments: 12 bytes of states.
std::vector<UpdatePart> with_fp32_states(TierKind param, TierKind grad, TierKind states) {
  std::vector<UpdatePart> parts{{DType::BF16, 1, Access::Write, param}, {DType::BF16, 1, Access::Read, grad}};
  for (int i = 0; i < 3; ++i) parts.push_back({DType::F32, 1, Access::ReadWrite, states});
  return parts;
}

// A remainder, an 8-bit moment and its scales: 3 + 1/64 bytes; the weight is read.
std::vector<UpdatePart> with_narrow_states(TierKind home) {
  return {{DType::BF16, 1, Access::ReadWrite, home},
          {DType::F32, 1, Access::Read, home},
          {DType::U16, 1, Access::ReadWrite, home},
          {DType::U8, 1, Access::ReadWrite, home},
          {DType::F32, 256, Access::ReadWrite, home}};
}

TEST(UpdateParts, AStreamedUpdateMovesStatesEachWayAndGradientAndWeightWhereTheyAreNotOnTheDevice) {
  const LinkBytes all =
      link_bytes(with_fp32_states(TierKind::Host, TierKind::Host, TierKind::Nvme), UpdateSite::Device);
  EXPECT_EQ(all.to_device, 12 + 2);
  EXPECT_EQ(all.to_host, 12 + 2);
  const LinkBytes states =
      link_bytes(with_fp32_states(TierKind::Device, TierKind::Device, TierKind::Host), UpdateSite::Device);
  EXPECT_EQ(states.to_device, 12);
  EXPECT_EQ(states.to_host, 12);
  const LinkBytes narrow = link_bytes(with_narrow_states(TierKind::Host), UpdateSite::Device);
  EXPECT_EQ(narrow.to_device, 2 + 4 + 2 + 1 + 4.0 / 256);
  EXPECT_EQ(narrow.to_host, 2 + 2 + 1 + 4.0 / 256);
}

TEST(UpdateParts, AnUpdateOnTheHostMovesWhatIsAtHomeOnTheDevice) {
  const LinkBytes none = link_bytes(with_fp32_states(TierKind::Host, TierKind::Host, TierKind::Nvme), UpdateSite::Host);
  EXPECT_EQ(none.to_device + none.to_host, 0);
  const LinkBytes some =
      link_bytes(with_fp32_states(TierKind::Device, TierKind::Device, TierKind::Host), UpdateSite::Host);
  EXPECT_EQ(some.to_device, 2);
  EXPECT_EQ(some.to_host, 2);
}

TEST(UpdateParts, ASetHoldsALongestChunkOfWhatIsNotAtHomeOnTheDevice) {
  constexpr std::uint64_t kSlot = 256 << 10;
  const auto staged = [](const std::vector<UpdatePart>& parts) { return update_staging_bytes(parts, kSlot); };
  // A chunk ends with a page of the widest type, fp32: half a page of each 16-bit type.
  EXPECT_EQ(staged(with_fp32_states(TierKind::Host, TierKind::Host, TierKind::Host)), 4 * kSlot);
  EXPECT_EQ(staged(with_fp32_states(TierKind::Host, TierKind::Host, TierKind::Device)), kSlot);
  EXPECT_EQ(staged(with_fp32_states(TierKind::Device, TierKind::Host, TierKind::Device)), kSlot / 2);
  EXPECT_EQ(staged(with_fp32_states(TierKind::Device, TierKind::Device, TierKind::Device)), 0U);
  // 64 Ki elements: weight and remainder half a page each, an fp32 gradient a whole one, codes a quarter, 256 scales.
  EXPECT_EQ(staged(with_narrow_states(TierKind::Nvme)), kSlot * 9 / 4 + 256 * 4);
}

}  // namespace
}  // namespace strata::zero
