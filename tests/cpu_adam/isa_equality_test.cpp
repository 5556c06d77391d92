// Every instruction set against the scalar definition, bit for bit, below the classes that split work.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "cpu_adam/math_scalar.h"
#include "cpu_adam/update_kernels.h"
#include "support/guarded_array.h"

namespace strata::cpu_adam {
namespace {

using test::GuardedArray;
constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};

std::vector<Isa> vector_isas() {
  std::vector<Isa> isas = usable_isas();
  isas.erase(isas.begin());
  return isas;
}

// Random bit patterns, so that every class of value occurs: zeros, subnormals, infinities, NaNs, ties.
void fill_with_any_bits(const GuardedArray& array, std::mt19937_64& random) {
  const TensorSpan span = array.span();
  for (std::size_t i = 0; i < span.bytes(); ++i) span.data[i] = static_cast<std::byte>(random());
  if (span.dtype != DType::F32) return;
  constexpr std::uint32_t kSpecial[] = {0,           0x80000000u, 1u,          0x7f800000u, 0xff800000u, 0x7f7fffffu,
                                        0x3f808000u, 0xbf818000u, 0x3f801000u, 0x33000000u, 0x32ffffffu, 0x477ff000u,
                                        0x477fefffu, 0x38800000u, 0x387fffffu, 0x387ff000u, 0x7f7f8000u, 0x7f810000u};
  for (std::size_t i = 0; i < span.numel; i += 3)
    span.as<float>()[i] = float_from_bits(kSpecial[random() % std::size(kSpecial)]);
}

void copy_elements(const GuardedArray& to, const GuardedArray& from) {
  if (from.span().numel != 0) std::memcpy(to.span().data, from.span().data, from.span().bytes());
}

// Equal bits, or both NaN: payloads are not promised for arithmetic (docs/numerics.md, 2).
::testing::AssertionResult same_values(TensorSpan a, TensorSpan b) {
  for (std::size_t i = 0; i < a.numel; ++i) {
    const std::uint32_t bits_a = a.dtype == DType::F32 ? float_bits(a.as<float>()[i]) : a.as<std::uint16_t>()[i];
    const std::uint32_t bits_b = b.dtype == DType::F32 ? float_bits(b.as<float>()[i]) : b.as<std::uint16_t>()[i];
    if (bits_a == bits_b) continue;
    const std::uint32_t infinity = a.dtype == DType::F32 ? 0x7f800000u : a.dtype == DType::BF16 ? 0x7f80u : 0x7c00u;
    const std::uint32_t magnitude = a.dtype == DType::F32 ? 0x7fffffffu : 0x7fffu;
    if ((bits_a & magnitude) > infinity && (bits_b & magnitude) > infinity) continue;
    return ::testing::AssertionFailure() << "element " << i << std::hex << ": " << bits_a << " and " << bits_b;
  }
  return ::testing::AssertionSuccess();
}

// The arrays of one run. Storage is a parameter type, or U16 for a bf16 parameter with a remainder.
struct RunArrays {
  GuardedArray param, grad, master, moment1, moment2;

  RunArrays(DType storage, DType grad_type, std::size_t numel, std::size_t shift)
      : param(storage == DType::U16 ? DType::BF16 : storage, numel, shift),
        grad(grad_type, numel, shift),
        master(storage == DType::U16 ? DType::U16 : DType::F32, numel, shift),
        moment1(DType::F32, numel, shift),
        moment2(DType::F32, numel, shift) {}
  UpdateRun run() const {
    return {param.span().data,  grad.span().data,
            master.span().data, {moment1.span().as<float>(), moment2.span().as<float>()},
            param.span().numel, 0.999f};
  }
  std::vector<const GuardedArray*> all() const { return {&param, &grad, &master, &moment1, &moment2}; }
};

UpdateConstants constants() {
  return {.grad_scale = 0.37f,
          .momentum = 0.9f,
          .one_minus_beta1 = 0.1f,
          .beta2 = 0.999f,
          .one_minus_beta2 = 0.001f,
          .inv_sqrt_bias_correction2 = 13.0f,
          .epsilon = 1e-8f,
          .negative_step_size = -3e-4f};
}

// A parameter and its remainder are one number: equal, or both NaN.
void expect_equal_pairs(const RunArrays& actual, const RunArrays& expected) {
  for (std::size_t i = 0; i < actual.param.span().numel; ++i) {
    const auto master_at = [i](const RunArrays& arrays) {
      return master_of(arrays.param.span().as<std::uint16_t>()[i], arrays.master.span().as<std::uint16_t>()[i]);
    };
    const float a = master_at(actual), b = master_at(expected);
    ASSERT_TRUE(float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b))) << "element " << i;
  }
}

void expect_equal_update(Isa isa, OptimizerKind kind, DType storage, DType grad, std::size_t numel, std::size_t shift,
                         std::mt19937_64& random) {
  SCOPED_TRACE(std::string(name_of(isa)) + " " + std::string(name_of(kind)) + " " + std::string(name_of(storage)) +
               " <- " + std::string(name_of(grad)) + " x " + std::to_string(numel) + " shifted by " +
               std::to_string(shift));
  const std::size_t storage_position =
      storage == DType::U16 ? std::size_t{Bf16Remainder::kIndex} : encoding_index(storage);
  const RunArrays expected(storage, grad, numel, shift);
  const RunArrays actual(storage, grad, numel, shift);
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    fill_with_any_bits(*expected.all()[i], random);
    copy_elements(*actual.all()[i], *expected.all()[i]);
  }

  update_kernels(isa).update[static_cast<std::size_t>(kind)][storage_position][encoding_index(grad)](constants(),
                                                                                                     actual.run());

  scalar::update_kernels().update[static_cast<std::size_t>(kind)][storage_position][encoding_index(grad)](
      constants(), expected.run());
  if (storage == DType::U16) {
    expect_equal_pairs(actual, expected);
    if (::testing::Test::HasFatalFailure()) return;
  }
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    if (storage != DType::U16 || i != 2) {
      ASSERT_TRUE(same_values(actual.all()[i]->span(), expected.all()[i]->span())) << "array " << i;
    }
    ASSERT_TRUE(actual.all()[i]->guards_intact()) << "array " << i;
  }
}

constexpr DType kStorages4[] = {DType::F32, DType::BF16, DType::F16, DType::U16};

std::vector<OptimizerKind> all_kinds() {
  std::vector<OptimizerKind> kinds;
  for (std::size_t kind = 0; kind < kOptimizerKinds; ++kind) kinds.push_back(static_cast<OptimizerKind>(kind));
  return kinds;
}

TEST(IsaEquality, AdamWForEveryLengthTo4097) {
  std::mt19937_64 random(20260101);
  for (const Isa isa : vector_isas()) {
    for (std::size_t numel = 1; numel <= 4097; ++numel) {
      expect_equal_update(isa, OptimizerKind::AdamW, DType::BF16, DType::BF16, numel, numel % 9, random);
      if (HasFatalFailure()) return;
    }
  }
}

// NUM-13.
TEST(IsaEquality, EveryOptimizerTypeAndMisalignment) {
  std::mt19937_64 random(20260102);
  for (const Isa isa : vector_isas()) {
    for (const OptimizerKind kind : all_kinds()) {
      for (const DType storage : kStorages4) {
        for (const DType grad : kTypes) {
          for (std::size_t shift = 0; shift < 17; shift += kind == OptimizerKind::AdamW ? 1 : 4) {
            for (const std::size_t numel : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 31u, 33u, 64u, 1023u}) {
              expect_equal_update(isa, kind, storage, grad, numel, shift, random);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// NUM-13: large counts, at addresses 4 and 8 bytes behind an aligned one; the small counts are in the test above.
TEST(IsaEquality, AMillionElementsAtAnyAddress) {
  std::mt19937_64 random(20260109);
  for (const Isa isa : vector_isas()) {
    for (const std::size_t shift : {1u, 2u}) {
      expect_equal_update(isa, OptimizerKind::AdamW, DType::F32, DType::F32, (std::size_t{1} << 20) + 3, shift, random);
      expect_equal_update(isa, OptimizerKind::AdamW, DType::BF16, DType::BF16, (std::size_t{1} << 20) + 3, 2 * shift,
                          random);
    }
  }
}

// What occurs in a moment: values of one size, of many sizes, with zeros, all zero, tiny, and any bits at all (0 to 5).
void fill_moment(const GuardedArray& array, std::mt19937_64& random, int style) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-30, 3);
  if (style == 0) return fill_with_any_bits(array, random);
  for (std::size_t i = 0; i < array.span().numel; ++i) {
    float value = normal(random);
    if (style == 2) value *= std::exp2(exponent(random));
    if (style == 3 && random() % 4 != 0) value = 0;
    if (style == 4) value *= 1e-42f;
    if (style == 5) value = 0;
    array.span().as<float>()[i] = value;
  }
}

TEST(IsaEquality, EightBitBlocks) {
  std::mt19937_64 random(20260106);
  for (const Isa isa : vector_isas()) {
    for (const std::size_t range : {0u, 1u}) {
      for (int style = 0; style <= 5; ++style) {
        for (std::size_t numel = 0; numel <= kScaleBlock; ++numel) {
          SCOPED_TRACE(std::string(name_of(isa)) + (range == 0 ? " signed" : " not negative") + ", style " +
                       std::to_string(style) + " x " + std::to_string(numel));
          const GuardedArray values(DType::F32, numel, numel % 5), codes(DType::U8, numel, numel % 7);
          const GuardedArray expected_codes(DType::U8, numel, 0), decoded(DType::F32, numel, 3);
          const GuardedArray expected_decoded(DType::F32, numel, 3);
          fill_moment(values, random, style);

          const float scale =
              state_kernels(isa).encode_block[range](values.span().as<float>(), codes.span().as<std::uint8_t>(), numel);
          state_kernels(isa).decode_block[range](codes.span().as<std::uint8_t>(), 0.3f, decoded.span().as<float>(),
                                                 numel);

          const float expected_scale = scalar::state_kernels().encode_block[range](
              values.span().as<float>(), expected_codes.span().as<std::uint8_t>(), numel);
          scalar::state_kernels().decode_block[range](codes.span().as<std::uint8_t>(), 0.3f,
                                                      expected_decoded.span().as<float>(), numel);
          ASSERT_EQ(float_bits(scale), float_bits(expected_scale));
          ASSERT_TRUE(codes.same_elements(expected_codes));
          ASSERT_TRUE(decoded.same_elements(expected_decoded));
          ASSERT_TRUE(codes.guards_intact() && decoded.guards_intact());
        }
      }
    }
  }
}

TEST(IsaEquality, EveryEightBitCodeDecodesAlike) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (const Isa isa : vector_isas()) {
    for (const std::size_t range : {0u, 1u}) {
      std::vector<float> actual(256), expected(256);

      state_kernels(isa).decode_block[range](codes.data(), 1.7f, actual.data(), 256);

      scalar::state_kernels().decode_block[range](codes.data(), 1.7f, expected.data(), 256);
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), 1024), 0) << name_of(isa) << " " << range;
    }
  }
}

TEST(IsaEquality, StochasticRounding) {
  std::mt19937_64 random(20260107);
  for (const Isa isa : vector_isas()) {
    for (const std::size_t moments : {1u, 2u}) {
      for (std::size_t numel = 0; numel <= 130; ++numel) {
        SCOPED_TRACE(std::string(name_of(isa)) + " x " + std::to_string(numel));
        const GuardedArray first(DType::F32, numel, 1), second(DType::F32, numel, 2);
        const GuardedArray actual[] = {{DType::U16, numel, 3}, {DType::U16, numel, 1}};
        const GuardedArray expected[] = {{DType::U16, numel, 3}, {DType::U16, numel, 1}};
        fill_with_any_bits(first, random);
        fill_with_any_bits(second, random);
        StochasticRun run;
        run.values = {first.span().as<float>(), second.span().as<float>()};
        run.moments = moments;
        run.numel = numel;
        run.key = random_key(random(), random(), 1);
        run.first_index = static_cast<std::uint32_t>(random());

        run.codes = {actual[0].span().as<std::uint16_t>(), actual[1].span().as<std::uint16_t>()};
        state_kernels(isa).round_stochastically(run);

        run.codes = {expected[0].span().as<std::uint16_t>(), expected[1].span().as<std::uint16_t>()};
        scalar::state_kernels().round_stochastically(run);
        for (std::size_t k = 0; k < 2; ++k) {
          ASSERT_TRUE(actual[k].same_elements(expected[k]));
          ASSERT_TRUE(actual[k].guards_intact());
        }
      }
    }
  }
}

TEST(IsaEquality, RemaindersJoinAndSplit) {
  std::mt19937_64 random(20260108);
  for (const Isa isa : vector_isas()) {
    for (std::size_t numel = 0; numel <= 130; ++numel) {
      SCOPED_TRACE(std::string(name_of(isa)) + " x " + std::to_string(numel));
      const GuardedArray master(DType::F32, numel, 1), joined(DType::F32, numel, 2);
      const GuardedArray param(DType::U16, numel, 3), remainder(DType::U16, numel, 1);
      fill_with_any_bits(master, random);

      state_kernels(isa).split_master(master.span().as<float>(), param.span().as<std::uint16_t>(),
                                      remainder.span().as<std::uint16_t>(), numel);
      state_kernels(isa).join_master(param.span().as<std::uint16_t>(), remainder.span().as<std::uint16_t>(),
                                     joined.span().as<float>(), numel);

      for (std::size_t i = 0; i < numel; ++i) {
        const float value = master.span().as<float>()[i];
        ASSERT_EQ(param.span().as<std::uint16_t>()[i], float_to_bf16(value));
        ASSERT_EQ(remainder.span().as<std::uint16_t>()[i], remainder_of(value));
      }
      ASSERT_TRUE(same_values(joined.span(), master.span()));
      ASSERT_TRUE(param.guards_intact() && remainder.guards_intact() && joined.guards_intact());
    }
  }
}

::testing::AssertionResult same_bits(TensorSpan a, TensorSpan b) {
  if (a.numel == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "bits differ";
}

void expect_equal_convert(const ShardKernels::Table<ShardKernels::Convert>& table,
                          const ShardKernels::Table<ShardKernels::Convert>& definition,
                          ::testing::AssertionResult (*same)(TensorSpan, TensorSpan), std::mt19937_64& random) {
  for (const DType to : kTypes) {
    for (const DType from : kTypes) {
      for (const std::size_t numel : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 31u, 33u, 1023u, 40000u}) {
        SCOPED_TRACE(std::string(name_of(to)) + " <- " + std::string(name_of(from)) + " x " + std::to_string(numel));
        const GuardedArray source(from, numel, 3), actual(to, numel, 5), expected(to, numel, 5);
        fill_with_any_bits(source, random);
        fill_with_any_bits(expected, random);
        copy_elements(actual, expected);

        table[encoding_index(to)][encoding_index(from)](actual.span().data, source.span().data, numel);

        definition[encoding_index(to)][encoding_index(from)](expected.span().data, source.span().data, numel);
        ASSERT_TRUE(same(actual.span(), expected.span()));
        ASSERT_TRUE(actual.guards_intact());
      }
    }
  }
}

// A cast moves bits without arithmetic, so even the payloads of NaNs are equal.
TEST(IsaEquality, Casts) {
  std::mt19937_64 random(20260103);
  for (const Isa isa : vector_isas()) {
    SCOPED_TRACE(std::string(name_of(isa)));
    expect_equal_convert(shard_kernels(isa).cast, scalar::kernels().cast, &same_bits, random);
  }
}

TEST(IsaEquality, Accumulation) {
  std::mt19937_64 random(20260104);
  for (const Isa isa : vector_isas()) {
    SCOPED_TRACE(std::string(name_of(isa)));
    expect_equal_convert(shard_kernels(isa).accumulate, scalar::kernels().accumulate, &same_values, random);
  }
}

TEST(IsaEquality, SumsOfSquaresForEveryLengthTo4097) {
  std::mt19937_64 random(20260105);
  std::normal_distribution<float> normal;
  for (const Isa isa : vector_isas()) {
    for (const DType dtype : kTypes) {
      const std::size_t type = encoding_index(dtype);
      const GuardedArray values(dtype, 4097, 1);
      for (std::size_t i = 0; i < 4097; ++i) {
        const float value = normal(random);
        if (dtype == DType::F32)
          values.span().as<float>()[i] = value;
        else
          values.span().as<std::uint16_t>()[i] = dtype == DType::BF16 ? float_to_bf16(value) : float_to_half(value);
      }
      for (std::size_t numel = 0; numel <= 4097; ++numel) {
        const double actual = shard_kernels(isa).sum_of_squares[type](values.span().data, numel);
        const double expected = scalar::kernels().sum_of_squares[type](values.span().data, numel);
        ASSERT_EQ(actual, expected) << name_of(isa) << " " << name_of(dtype) << " x " << numel;
      }
    }
  }
}

TEST(Isa, TheEnvironmentChoosesThePathAndIsReportedByName) {
  ASSERT_EQ(setenv("STRATA_ISA", "scalar", 1), 0);
  EXPECT_EQ(name_of(resolve_isa(Isa::Auto)), "scalar");
  ASSERT_EQ(setenv("STRATA_ISA", "mmx", 1), 0);
  EXPECT_THROW(resolve_isa(Isa::Auto), ConfigError);
  EXPECT_EQ(resolve_isa(Isa::Scalar), Isa::Scalar);
  ASSERT_EQ(unsetenv("STRATA_ISA"), 0);
  EXPECT_EQ(resolve_isa(Isa::Auto), usable_isas().back());
}

}  // namespace
}  // namespace strata::cpu_adam
