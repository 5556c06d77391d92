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
#include "cpu_adam/adam_scalar.h"
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

struct AdamArrays {
  GuardedArray param, grad, master, exp_avg, exp_avg_sq;

  AdamArrays(DType param_type, DType grad_type, std::size_t numel, std::size_t shift)
      : param(param_type, numel, shift),
        grad(grad_type, numel, shift),
        master(DType::F32, numel, shift),
        exp_avg(DType::F32, numel, shift),
        exp_avg_sq(DType::F32, numel, shift) {}
  AdamRun run() const {
    return {param.span().data,
            grad.span().data,
            master.span().as<float>(),
            exp_avg.span().as<float>(),
            exp_avg_sq.span().as<float>(),
            param.span().numel,
            0.999f};
  }
  std::vector<const GuardedArray*> all() const { return {&param, &grad, &master, &exp_avg, &exp_avg_sq}; }
};

AdamConstants constants() {
  return {.grad_scale = 0.37f,
          .one_minus_beta1 = 0.1f,
          .beta2 = 0.999f,
          .one_minus_beta2 = 0.001f,
          .inv_sqrt_bias_correction2 = 13.0f,
          .epsilon = 1e-8f,
          .negative_step_size = -3e-4f};
}

void expect_equal_adam(Isa isa, DType param, DType grad, std::size_t numel, std::size_t shift,
                       std::mt19937_64& random) {
  SCOPED_TRACE(std::string(name_of(isa)) + " " + std::string(name_of(param)) + " <- " + std::string(name_of(grad)) +
               " x " + std::to_string(numel) + " shifted by " + std::to_string(shift));
  const AdamArrays expected(param, grad, numel, shift);
  const AdamArrays actual(param, grad, numel, shift);
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    fill_with_any_bits(*expected.all()[i], random);
    copy_elements(*actual.all()[i], *expected.all()[i]);
  }

  kernels_for(isa).adam[encoding_index(param)][encoding_index(grad)](constants(), actual.run());

  scalar::kernels().adam[encoding_index(param)][encoding_index(grad)](constants(), expected.run());
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    ASSERT_TRUE(same_values(actual.all()[i]->span(), expected.all()[i]->span())) << "array " << i;
    ASSERT_TRUE(actual.all()[i]->guards_intact()) << "array " << i;
  }
}

TEST(IsaEquality, AdamForEveryLengthTo4097) {
  std::mt19937_64 random(20260101);
  for (const Isa isa : vector_isas()) {
    for (std::size_t numel = 1; numel <= 4097; ++numel) {
      expect_equal_adam(isa, DType::BF16, DType::BF16, numel, numel % 9, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(IsaEquality, AdamForEveryTypeAndMisalignment) {
  std::mt19937_64 random(20260102);
  for (const Isa isa : vector_isas()) {
    for (const DType param : kTypes) {
      for (const DType grad : kTypes) {
        for (std::size_t shift = 0; shift < 17; ++shift) {
          for (const std::size_t numel : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 31u, 33u, 1023u}) {
            expect_equal_adam(isa, param, grad, numel, shift, random);
            if (HasFatalFailure()) return;
          }
        }
      }
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
    expect_equal_convert(kernels_for(isa).cast, scalar::kernels().cast, &same_bits, random);
  }
}

TEST(IsaEquality, Accumulation) {
  std::mt19937_64 random(20260104);
  for (const Isa isa : vector_isas()) {
    SCOPED_TRACE(std::string(name_of(isa)));
    expect_equal_convert(kernels_for(isa).accumulate, scalar::kernels().accumulate, &same_values, random);
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
        const double actual = kernels_for(isa).sum_of_squares[type](values.span().data, numel);
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
