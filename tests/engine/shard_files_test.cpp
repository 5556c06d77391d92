#include "engine/shard_files.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/bytes.h"
#include "core/error.h"
#include "core/numeric.h"
#include "cpu_adam/cpu_shard_math.h"
#include "support/store_rig.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::ShardId;
using offload::TierKind;
using test::StoreRig;

// With pages of 1024 fp32 elements: parameters that end inside, span, and begin inside pages, and gaps between them.
zero::FlatLayout layout(std::size_t world) {
  return {{"group", {{"first", {700}}, {"table", {61, 50}}, {"one", {1}}, {"last", {1500}}}}, world};
}

const zero::FlatLayout& layout() {
  static const zero::FlatLayout one = layout(1);
  return one;
}

ShardSlice whole(ShardId shard, std::size_t elements_per_value = 1) {
  return {layout(), shard, 0, elements_per_value};
}

TensorSpan span_of(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()};
}

float value_of(std::size_t param, std::uint64_t element) {
  return static_cast<float>(10000 * (param + 1) + element);
}

void numbered(std::size_t param, std::uint64_t first, TensorSpan destination) {
  for (std::size_t i = 0; i < destination.numel; ++i) destination.as<float>()[i] = value_of(param, first + i);
}

// A shard that held other bytes before.
ShardId used_shard(StoreRig& rig, TierKind home, std::uint64_t numel) {
  const ShardId shard = rig.add(numel, home);
  test::write_shard(rig.store, shard, std::vector<std::byte>(numel * sizeof(float), std::byte{0xff}));
  return shard;
}

std::vector<float> floats_of(StoreRig& rig, ShardId shard) {
  const std::vector<std::byte> bytes = test::read_shard(rig.store, shard);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// What one rank's shard must hold.
std::vector<float> expected(const zero::FlatLayout& of, std::size_t rank) {
  std::vector<float> flat(of.numel(), 0.0F);
  for (std::size_t p = 0; p < of.params().size(); ++p) {
    for (std::size_t i = 0; i < of.params()[p].numel; ++i) flat[of.params()[p].offset + i] = value_of(p, i);
  }
  const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(rank * of.shard_numel());
  return {begin, begin + static_cast<std::ptrdiff_t>(of.shard_numel())};
}

constexpr TierKind kHomes[] = {TierKind::Device, TierKind::Host, TierKind::Nvme};

TEST(FillShard, WritesParametersAndZeroPaddingOnEveryTier) {
  for (const TierKind home : kHomes) {
    SCOPED_TRACE(offload::name_of(home));
    StoreRig rig;
    const ShardId shard = used_shard(rig, home, layout().shard_numel());
    fill_shard(rig.store, whole(shard), numbered);
    EXPECT_EQ(floats_of(rig, shard), expected(layout(), 0));
  }
}

TEST(FillShard, WritesTheRowOfItsRank) {
  const zero::FlatLayout of = layout(2);
  for (const std::size_t rank : {0, 1}) {
    StoreRig rig;
    const ShardId shard = used_shard(rig, TierKind::Nvme, of.shard_numel());
    fill_shard(rig.store, {of, shard, rank * of.shard_numel()}, numbered);
    EXPECT_EQ(floats_of(rig, shard), expected(of, rank)) << "rank " << rank;
  }
}

TEST(FillShard, AsksForElementsInAscendingOrder) {
  StoreRig rig;
  const ShardId shard = rig.add(layout().shard_numel());
  std::vector<std::uint64_t> next(4, 0);
  std::size_t last = 0;
  fill_shard(rig.store, whole(shard), [&](std::size_t param, std::uint64_t first, TensorSpan destination) {
    EXPECT_GE(param, last);
    EXPECT_EQ(first, next.at(param));
    next[param] += destination.numel;
    last = param;
    numbered(param, first, destination);
  });
  EXPECT_EQ(next, (std::vector<std::uint64_t>{700, 3050, 1, 1500}));
}

TEST(FillShard, HasLandedOnTheDeviceWhenItReturns) {
  StoreRig rig;
  const ShardId shard = used_shard(rig, TierKind::Device, layout().shard_numel());
  fill_shard(rig.store, whole(shard), numbered);
  std::vector<float> seen(layout().shard_numel());
  std::memcpy(seen.data(), rig.store.device_address(shard), seen.size() * sizeof(float));
  EXPECT_EQ(seen, expected(layout(), 0));
}

TEST(ReadParam, GivesBackWhatWasFilledInPiecesOfAnySize) {
  for (const TierKind home : kHomes) {
    SCOPED_TRACE(offload::name_of(home));
    StoreRig rig;
    const ShardId shard = used_shard(rig, home, layout().shard_numel());
    fill_shard(rig.store, whole(shard), numbered);
    for (std::size_t p = 0; p < layout().params().size(); ++p) {
      const std::size_t numel = layout().params()[p].numel;
      for (std::size_t first = 0; first < numel; first += 1111) {
        std::vector<float> values(std::min<std::size_t>(1111, numel - first));
        read_param(rig.store, whole(shard), p, first,
                   {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value_of(p, first + i)) << p << " " << i;
      }
    }
  }
}

TEST(ReadParam, TakesParametersWithoutElements) {
  const zero::FlatLayout of{{"group", {{"none", {0}}, {"first", {700}}, {"nor", {0, 4}}, {"last", {3}}}}, 1};
  for (const TierKind home : kHomes) {
    StoreRig rig;
    const ShardId shard = used_shard(rig, home, of.shard_numel());
    const ShardSlice slice{of, shard, 0, 1};
    fill_shard(rig.store, slice, numbered);
    EXPECT_EQ(floats_of(rig, shard), expected(of, 0));
    for (const std::size_t param : {0, 2}) {
      EXPECT_EQ(values_in(rig.store, slice, param).numel, 0U);
      std::vector<float> none;
      read_param(rig.store, slice, param, 0, span_of(none));
      write_param(rig.store, slice, param, 0, span_of(none));
    }
    EXPECT_EQ(floats_of(rig, shard), expected(of, 0));
  }
}

// One value for 256 elements, as the scales of 8-bit states.
TEST(FillShard, WritesAndReadsStatesOfWhichElementsShareAValue) {
  constexpr std::size_t kShared = 256;
  StoreRig rig;
  const ShardId shard = rig.add(layout().shard_numel() / kShared);
  fill_shard(rig.store, whole(shard, kShared), numbered);
  for (std::size_t p = 0; p < layout().params().size(); ++p) {
    std::vector<float> values((layout().params()[p].numel + kShared - 1) / kShared);
    read_param(rig.store, whole(shard, kShared), p, 0,
               {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], value_of(p, i)) << p << " " << i;
  }
}

TEST(ValuesIn, RowsOfAllRanksMakeUpEveryParameterInOrder) {
  for (const std::size_t world : {1, 2, 3, 4}) {
    const zero::FlatLayout of = layout(world);
    for (const std::size_t per_value : {1, 256}) {
      for (std::size_t p = 0; p < of.params().size(); ++p) {
        std::uint64_t next = 0;
        for (std::size_t rank = 0; rank < world; ++rank) {
          const ValueRange range = values_in_row(of, p, rank, per_value);
          if (range.numel == 0) continue;
          EXPECT_EQ(range.first, next) << world << " ranks, parameter " << p;
          next += range.numel;
        }
        EXPECT_EQ(next, ceil_div(of.params()[p].numel, per_value)) << world << " ranks, parameter " << p;
      }
    }
  }
}

TEST(ReadParam, ReadsFromARowWhatItHolds) {
  const zero::FlatLayout of = layout(3);
  for (std::size_t rank = 0; rank < of.world(); ++rank) {
    StoreRig rig;
    const ShardSlice row{of, used_shard(rig, TierKind::Nvme, of.shard_numel()), rank * of.shard_numel()};
    fill_shard(rig.store, row, numbered);
    for (std::size_t p = 0; p < of.params().size(); ++p) {
      const ValueRange range = values_in(rig.store, row, p);
      std::vector<float> values(range.numel);
      read_param(rig.store, row, p, range.first, span_of(values));
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value_of(p, range.first + i));
      std::vector<float> more(range.numel + 1);
      EXPECT_THROW(read_param(rig.store, row, p, range.first, span_of(more)), ContractViolation);
    }
  }
}

// DI-12: sizes that the ranks do not divide failed, or their padding was exported.
TEST(ReadParam, RowsOfSmallTensorsMakeUpTheFileOfOneRank) {
  for (const std::size_t world : {3, 4}) {
    // Alone each lies in the first row, and other ranks hold nothing of it; together with a large one they lie in any.
    for (const std::int64_t large : {std::int64_t{1}, std::int64_t{300'000}}) {
      const zero::FlatLayout of({"group", {{"one", {1}}, {"large", {large}}, {"three", {3}}, {"five", {5}}}}, world);
      const std::vector<hf::TensorToWrite> tensors{{"one", DType::F32, {1}},
                                                   {"large", DType::F32, {large}},
                                                   {"three", DType::F32, {3}},
                                                   {"five", DType::F32, {5}}};
      const test::TempDir folder;
      const hf::SafetensorsPlan plan(tensors);
      plan.create_files(folder.path());
      for (std::size_t rank = 0; rank < world; ++rank) {
        StoreRig rig;
        const ShardSlice row{of, used_shard(rig, TierKind::Nvme, of.shard_numel()), rank * of.shard_numel()};
        fill_shard(rig.store, row, numbered);
        hf::SafetensorsWriter writer(plan, folder.path());
        for (std::size_t p = 0; p < tensors.size(); ++p) {
          const ValueRange range = values_in_row(of, p, rank);
          std::vector<float> values(range.numel);
          read_param(rig.store, row, p, range.first, span_of(values));
          writer.write(p, range.first * sizeof(float), std::as_bytes(std::span(values)));
        }
        writer.finish();
      }
      const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(folder.path());
      for (std::size_t p = 0; p < tensors.size(); ++p) {
        std::vector<float> values(of.params()[p].numel);
        catalog.read(*catalog.find(tensors[p].name), 0, std::as_writable_bytes(std::span(values)));
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value_of(p, i)) << tensors[p].name;
      }
    }
  }
}

TEST(WriteParam, ChangesTheValuesAndNothingBesides) {
  for (const TierKind home : kHomes) {
    SCOPED_TRACE(offload::name_of(home));
    StoreRig rig;
    const ShardId shard = used_shard(rig, home, layout().shard_numel());
    fill_shard(rig.store, whole(shard), numbered);
    std::vector<float> written(2500);
    for (std::size_t i = 0; i < written.size(); ++i) written[i] = -static_cast<float>(i);

    write_param(rig.store, whole(shard), 1, 100, span_of(written));

    std::vector<float> wanted = expected(layout(), 0);
    std::copy(written.begin(), written.end(),
              wanted.begin() + static_cast<std::ptrdiff_t>(layout().params()[1].offset + 100));
    EXPECT_EQ(floats_of(rig, shard), wanted);
  }
}

TEST(ReadConverted, ConvertsThroughABufferSmallerThanTheTensor) {
  const test::TempDir folder;
  std::vector<std::uint16_t> stored(1000);
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = float_to_bf16(0.37F * static_cast<float>(i) - 90);
  const std::vector<hf::TensorToWrite> tensors{{"weight", DType::BF16, {1000}}};
  std::vector<std::byte> buffer(256);
  hf::write_safetensors(
      folder.path(), tensors,
      [&](std::size_t, std::uint64_t offset_bytes, std::span<std::byte> destination) {
        std::memcpy(destination.data(), reinterpret_cast<const std::byte*>(stored.data()) + offset_bytes,
                    destination.size());
      },
      buffer);
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(folder.path());
  const std::unique_ptr<Parallel> one = make_thread_pool(1);
  cpu_adam::CpuShardMath math(*one);
  std::vector<float> values(900);
  read_converted(catalog, *catalog.find("weight"), 70,
                 {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()}, buffer, math);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], bf16_to_float(stored[70 + i])) << i;
}

TEST(RequireFiniteFp16, NamesTheFirstValueThatIsNot) {
  std::vector<std::uint16_t> half(100, float_to_half(65504.0F));
  const auto text = [&](DType dtype) -> std::string {
    const TensorSpan values{reinterpret_cast<std::byte*>(half.data()), dtype, half.size()};
    try {
      require_finite_fp16("layer.weight", 1000, values, [](std::size_t i) { return 1e5F + static_cast<float>(i); });
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text(DType::F16), "");
  for (const std::uint16_t bits :
       std::initializer_list<std::uint16_t>{0x7c00, 0xfc00, 0x7e00}) {  // both infinities and a NaN
    half[70] = bits;
    half[80] = 0x7c00;
    EXPECT_TRUE(text(DType::F16).starts_with("layer.weight: element 1070 is 100070, which fp16 cannot hold"))
        << text(DType::F16);
    EXPECT_EQ(text(DType::BF16), "") << "where the same bits are a number";
  }
}

TEST(ShapeText, IsAListInBrackets) {
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{49152, 576}), "[49152, 576]");
  EXPECT_EQ(shape_text({}), "[]");
}

}  // namespace
}  // namespace strata::engine
