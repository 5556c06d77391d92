// The arithmetic of core/optimizer_math.h against the same formula in double.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"
#include "support/optimizer_shard.h"

namespace strata::cpu_adam {
namespace {

constexpr double u = 0x1p-24, tiny = 0x1p-147;

// torch.optim.AdamW for one element, in double.
struct ReferenceAdam {
  double param, exp_avg, exp_avg_sq;
  double update = 0;  // size of the last change that is not decay
  double denom = 0;

  void step(const StepContext& c, double grad, bool decay) {
    const double t = static_cast<double>(c.step);
    const double g = grad * static_cast<double>(c.grad_scale);
    if (decay) param *= 1 - c.learning_rate * c.weight_decay;
    exp_avg = c.beta1 * exp_avg + (1 - c.beta1) * g;
    exp_avg_sq = c.beta2 * exp_avg_sq + (1 - c.beta2) * g * g;
    denom = std::sqrt(exp_avg_sq) / std::sqrt(1 - std::pow(c.beta2, t)) + c.epsilon;
    update = c.learning_rate / (1 - std::pow(c.beta1, t)) * exp_avg / denom;
    param -= update;
  }
};

// fp32 training of one run of elements through CpuOptimizer.
struct FloatRun {
  std::vector<float> param, grad, exp_avg, exp_avg_sq;

  explicit FloatRun(std::size_t numel) : param(numel), grad(numel), exp_avg(numel), exp_avg_sq(numel) {}
  void step(ShardOptimizer& optimizer, const StepContext& context, bool decay = true) {
    const auto span_of = [](std::vector<float>& values) {
      return TensorSpan{reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()};
    };
    const std::vector<TensorSpan> states = {span_of(exp_avg), span_of(exp_avg_sq)};
    const std::vector<Segment> segments = {
        {.name = "p", .shape = {}, .offset = 0, .numel = param.size(), .decay = decay}};
    optimizer.step(context, {span_of(param), span_of(grad), states, segments}).wait();
  }
};

class AdamReference : public ::testing::Test {
 protected:
  std::unique_ptr<Parallel> parallel_ = make_thread_pool(1);
  CpuOptimizer optimizer_{*parallel_};
};

// Bounds with u = 2^-24, the relative error of one fp32 rounding. Every constant is itself rounded once (u).
//   exp_avg: g = 1u; 1 - beta1 = 1u; g - m = 1u; the fused sum rounds once more:  u|m'| + 3u (1-beta1)(|g| + |m|)
//   exp_avg_sq: a sum of positive terms, each with at most 5 roundings, + 1:       6u v'
//   denom: sqrt halves 6u and rounds: 4u; its factor 1u; the fused sum 1u:          6u denom
//   update: exp_avg's error over denom, + denom 6u + division 1u + step size 1u:    8u |update|
//   param: decay's factor and product 2u |p|, the fused sum u |p'|
// The tests allow one more u on each for second-order terms, and 2^-149 for results below the normal range.
TEST_F(AdamReference, OneStepStaysWithinTheDerivedBound) {
  constexpr std::size_t numel = 100000;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-30, 10);
  FloatRun run(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    run.param[i] = normal(random) * std::exp2(exponent(random));
    run.grad[i] = normal(random) * std::exp2(exponent(random));
    run.exp_avg[i] = normal(random) * std::exp2(exponent(random));
    run.exp_avg_sq[i] = std::abs(normal(random)) * std::exp2(2 * exponent(random));
  }
  const FloatRun before = run;
  const StepContext context = {
      .step = 17, .learning_rate = 3e-3, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.3f};

  run.step(optimizer_, context);

  for (std::size_t i = 0; i < numel; ++i) {
    const double p = static_cast<double>(before.param[i]), m = static_cast<double>(before.exp_avg[i]);
    const double g = static_cast<double>(before.grad[i]) * static_cast<double>(context.grad_scale);
    ReferenceAdam expected = {p, m, static_cast<double>(before.exp_avg_sq[i])};
    expected.step(context, static_cast<double>(before.grad[i]), true);
    const double m_bound = u * (2 * std::abs(expected.exp_avg) + 4 * 0.1 * (std::abs(g) + std::abs(m))) + tiny;
    const double scale = context.learning_rate / (1 - std::pow(0.9, 17)) / expected.denom;
    const double p_bound =
        u * (3 * std::abs(p) + 2 * std::abs(expected.param) + 9 * std::abs(expected.update)) + scale * m_bound + tiny;
    ASSERT_NEAR(static_cast<double>(run.exp_avg[i]), expected.exp_avg, m_bound) << i;
    ASSERT_NEAR(static_cast<double>(run.exp_avg_sq[i]), expected.exp_avg_sq, 7 * u * expected.exp_avg_sq + tiny) << i;
    ASSERT_NEAR(static_cast<double>(run.param[i]), expected.param, p_bound) << i;
  }
}

// NUM-16. With eps 1e-3 and gradients of 1e-4 eps dominates the denominator: adding it before bias correction would
// make the first step 30 times smaller.
TEST_F(AdamReference, EpsilonIsAddedAfterBiasCorrection) {
  FloatRun run(33);
  std::vector<ReferenceAdam> expected(33, {0.5, 0, 0});
  for (std::size_t i = 0; i < 33; ++i) run.param[i] = 0.5f;
  for (std::int64_t t = 1; t <= 3; ++t) {
    const StepContext context = {.step = t, .learning_rate = 1e-2, .epsilon = 1e-3, .weight_decay = 0.01};
    for (std::size_t i = 0; i < 33; ++i) {
      run.grad[i] = 1e-4f * static_cast<float>(i + 1) / 16.0f;
      expected[i].step(context, static_cast<double>(run.grad[i]), true);
    }

    run.step(optimizer_, context);
  }

  // Three steps add at most 3 x (3 + 1) roundings of a parameter of 0.5, that is 12 x 2^-25; the updates are far
  // smaller.
  for (std::size_t i = 0; i < 33; ++i) {
    EXPECT_NEAR(static_cast<double>(run.param[i]), expected[i].param, 12 * 0x1p-25) << i;
  }
}

TEST_F(AdamReference, AZeroGradientOnFreshStatesOnlyDecays) {
  FloatRun run(9);
  run.param.assign(9, 2.0f);

  run.step(optimizer_, {.step = 1, .learning_rate = 0.5, .weight_decay = 0.5});

  EXPECT_EQ(run.param, std::vector<float>(9, 1.5f));
  EXPECT_EQ(run.exp_avg, std::vector<float>(9, 0.0f));
}

TEST_F(AdamReference, WithoutDecayAZeroGradientChangesNoBit) {
  FloatRun run(4);
  run.param = {-0.0f, 1e-42f, 3.4e38f, 0.1f};
  const std::vector<float> before = run.param;

  run.step(optimizer_, {.step = 1, .learning_rate = 0.5, .weight_decay = 0.5}, false);

  // Compared as bits; -0 - (+0) stays -0.
  EXPECT_EQ(std::memcmp(run.param.data(), before.data(), 16), 0);
}

TEST_F(AdamReference, SubnormalGradientsAreNotFlushed) {
  FloatRun run(16);
  run.grad.assign(16, 1e-40f);

  run.step(optimizer_, {.step = 1, .learning_rate = 1, .epsilon = 1e-30});

  EXPECT_NEAR(static_cast<double>(run.exp_avg[15]), 1e-41, 0x1p-148);
  EXPECT_LT(run.param[15], 0.0f);
}

TEST_F(AdamReference, NonFiniteGradientsAreNotHidden) {
  FloatRun run(3);
  run.grad = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0f};

  run.step(optimizer_, {.step = 1, .learning_rate = 1e-3});

  EXPECT_TRUE(std::isnan(run.param[0]));  // infinity / infinity
  EXPECT_TRUE(std::isnan(run.param[1]));
  EXPECT_TRUE(std::isfinite(run.param[2]));
}

// --- every kind, in every encoding that is exact ---

// A number and a bound of the error of what fp32 makes of it: each operation adds u times its result, each constant of
// the step is rounded once (u), and errors of operands travel by the derivative.
struct Bounded {
  double value, error;
};
Bounded plus(Bounded a, Bounded b) {
  const double sum = a.value + b.value;
  return {sum, a.error + b.error + u * std::abs(sum)};
}
Bounded times(double constant, Bounded a) {
  return {constant * a.value, std::abs(constant) * (a.error + 2 * u * std::abs(a.value))};
}
// fma(weight, g - m, m), in which g - m rounds before it is weighed.
Bounded lerp(double weight, Bounded g, Bounded m) {
  const double value = m.value + weight * (g.value - m.value);
  const double operands = weight * (g.error + 3 * u * (std::abs(g.value) + std::abs(m.value)));
  return {value, operands + u * std::abs(value)};
}

struct Reference {
  Bounded master, moment1, moment2;
  bool doubtful = false;  // Lion: the sign may be the other
};

// torch.optim and Lion's algorithm 2 for one element.
Reference reference_step(OptimizerKind kind, const StepContext& c, double master, double moment1, double moment2,
                         double grad) {
  const double t = static_cast<double>(c.step);
  Reference r = {{master, 0}, {moment1, 0}, {moment2, 0}};
  Bounded g = times(static_cast<double>(c.grad_scale), {grad, 0});
  if (!decay_is_decoupled(kind)) g = plus(times(c.weight_decay, r.master), g);
  const Bounded decayed = times(1 - c.learning_rate * c.weight_decay, r.master);
  if (moments_of(kind) == 2) {
    r.moment1 = lerp(1 - c.beta1, g, r.moment1);
    const double square = (1 - c.beta2) * g.value * g.value;
    const double v = c.beta2 * moment2 + square;
    r.moment2 = {v, 6 * u * v + 2 * (1 - c.beta2) * std::abs(g.value) * g.error};
    const double factor = 1 / std::sqrt(1 - std::pow(c.beta2, t));
    const double root = std::sqrt(v) * factor, denom = root + c.epsilon;
    const double root_error = v > 0 ? root * (r.moment2.error / (2 * v) + 3 * u) : 0;
    const double denom_error = root_error + u * denom;
    const double step = c.learning_rate / (1 - std::pow(c.beta1, t)), update = step * r.moment1.value / denom;
    const double update_error = step / denom * r.moment1.error + std::abs(update) * (denom_error / denom + 3 * u);
    r.master = plus(kind == OptimizerKind::AdamW ? decayed : r.master, {-update, update_error});
  } else if (kind == OptimizerKind::Lion) {
    const Bounded direction = lerp(1 - c.beta1, g, r.moment1);
    r.doubtful = std::abs(direction.value) <= direction.error + tiny;
    const double sign = direction.value > 0 ? 1 : direction.value < 0 ? -1 : 0;
    r.master = plus(decayed, times(-c.learning_rate, {sign, 0}));
    r.moment1 = lerp(1 - c.beta2, g, r.moment1);
  } else if (kind == OptimizerKind::Sgd) {
    r.master = plus(r.master, times(-c.learning_rate, g));
  } else {
    r.moment1 = plus(times(c.beta1, r.moment1), g);
    const Bounded direction = kind == OptimizerKind::Nesterov ? plus(times(c.beta1, r.moment1), g) : r.moment1;
    r.master = plus(r.master, times(-c.learning_rate, direction));
  }
  return r;
}

double master_at(const test::Shard& shard, std::size_t i) {
  if (shard.master().dtype == DType::F32) return static_cast<double>(shard.master().as<float>()[i]);
  return static_cast<double>(master_of(shard.param().as<std::uint16_t>()[i], shard.master().as<std::uint16_t>()[i]));
}

double moment_at(const test::Shard& shard, std::size_t k, std::size_t i) {
  if (k >= moments_of(shard.config().kind)) return 0;
  return static_cast<double>(shard.moment(k)[0].as<float>()[i]);
}

// Distance in units in the last place of the fp32 number nearest to `wanted`.
double ulps(double actual, double wanted) {
  const float near = std::abs(static_cast<float>(wanted));
  const double unit = static_cast<double>(std::nextafter(near, std::numeric_limits<float>::infinity()) - near);
  return std::abs(actual - wanted) / unit;
}

// Of the result, where it is at least half as large as before the step: where a sum cancels, no bound in ULP of the
// result means anything. The derived bounds, which hold everywhere, give 16 there; 4.3 is what occurs.
constexpr double kMostUlps = 5;
struct WorstUlps {
  double master = 0, moment1 = 0, moment2 = 0;
};

void expect_within_bounds(const StepContext& context, const test::Shard& before, const test::Shard& after,
                          WorstUlps& worst) {
  const OptimizerKind kind = before.config().kind;
  const std::size_t numel = before.param().numel;
  std::size_t doubtful = 0;
  for (std::size_t i = 0; i < numel; ++i) {
    const double grad = static_cast<double>(test::decoded(before.grad(), i));
    const double old[] = {master_at(before, i), moment_at(before, 0, i), moment_at(before, 1, i)};
    const Reference expected = reference_step(kind, context, old[0], old[1], old[2], grad);
    doubtful += expected.doubtful ? 1 : 0;
    const auto expect_near = [&](double actual, Bounded wanted, double was, double& worst_of, const char* what) {
      // One more u for products of errors.
      ASSERT_NEAR(actual, wanted.value, wanted.error + u * std::abs(wanted.value) + tiny) << what << " " << i;
      if (std::abs(wanted.value) > std::abs(was) / 2) worst_of = std::max(worst_of, ulps(actual, wanted.value));
    };
    if (!expected.doubtful) expect_near(master_at(after, i), expected.master, old[0], worst.master, "master");
    expect_near(moment_at(after, 0, i), expected.moment1, old[1], worst.moment1, "moment 1");
    expect_near(moment_at(after, 1, i), expected.moment2, old[2], worst.moment2, "moment 2");
    if (::testing::Test::HasFatalFailure()) return;
    // The 16-bit weight is the master, rounded once.
    if (after.param().dtype == DType::BF16) {
      ASSERT_EQ(after.param().as<std::uint16_t>()[i], float_to_bf16(static_cast<float>(master_at(after, i)))) << i;
    }
  }
  EXPECT_LT(doubtful, numel / 500);
}

TEST(OptimizerReference, EveryKindStaysWithinTheBoundInEveryExactEncodingTypeAndInstructionSet) {
  constexpr std::size_t numel = 5003;
  const StepContext context = {.step = 17, .learning_rate = 3e-3, .weight_decay = 0.1, .grad_scale = 0.3f};
  const auto parallel = make_thread_pool(1);
  const std::vector<Segment> segments = {test::whole(numel)};
  for (std::size_t kind = 0; kind < kOptimizerKinds; ++kind) {
    WorstUlps worst;
    for (const auto& [master, param] :
         {std::pair{MasterEncoding::Fp32, DType::F32}, std::pair{MasterEncoding::Fp32, DType::BF16},
          std::pair{MasterEncoding::Fp32, DType::F16}, std::pair{MasterEncoding::Remainder, DType::BF16}}) {
      for (const DType grad : {DType::F32, DType::BF16, DType::F16}) {
        for (const Isa isa : usable_isas()) {
          const OptimizerConfig config = {.kind = static_cast<OptimizerKind>(kind), .master = master};
          SCOPED_TRACE(std::string(name_of(config.kind)) + ", master " + std::string(name_of(master)) + " of " +
                       std::string(name_of(param)) + ", gradient " + std::string(name_of(grad)) + ", " +
                       std::string(name_of(isa)));
          const test::Shard before(config, param, grad, numel), after(config, param, grad, numel);

          CpuOptimizer(*parallel, config, isa).step(context, after.views(segments)).wait();

          expect_within_bounds(context, before, after, worst);
          if (HasFatalFailure()) return;
        }
      }
    }
    for (const double error : {worst.master, worst.moment1, worst.moment2}) {
      EXPECT_LE(error, kMostUlps) << name_of(static_cast<OptimizerKind>(kind));
    }
  }
}

// Zeros that take memory only where they are touched.
class SparseArray {
 public:
  SparseArray(DType dtype, std::size_t numel) : span_{nullptr, dtype, numel} {
    void* mapped =
        mmap(nullptr, span_.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) span_.data = static_cast<std::byte*>(mapped);
  }
  SparseArray(SparseArray&& other) noexcept : span_(std::exchange(other.span_, {})) {}
  ~SparseArray() {
    if (span_.data != nullptr) munmap(span_.data, span_.bytes());
  }
  const TensorSpan& span() const { return span_; }

 private:
  TensorSpan span_;
};

// NUM-15. Of 2^31 + 5 elements the last five are updated, as if they were alone: an index of 32 bits would not reach
// them.
TEST(OptimizerReference, ElementsBehindTwoToThe31AreUpdated) {
  constexpr std::size_t kFirst = std::size_t{1} << 31, numel = kFirst + 5;
  const auto parallel = make_thread_pool(2);
  const std::vector<Segment> segments = {{.name = "end", .shape = {}, .offset = kFirst, .numel = 5, .decay = true}};
  const std::vector<Segment> alone = {test::whole(5)};
  const StepContext context = test::ordinary_step();
  for (const OptimizerConfig& config :
       {OptimizerConfig{}, OptimizerConfig{.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16},
        OptimizerConfig{.moments = MomentEncoding::Block8}}) {
    for (const Isa isa : usable_isas()) {
      SCOPED_TRACE(std::string(name_of(config.master)) + ", moments " + std::string(name_of(config.moments)) + ", " +
                   std::string(name_of(isa)));
      const test::Shard expected(config, DType::BF16, DType::BF16, 5);
      std::vector<SparseArray> arrays;
      arrays.emplace_back(DType::BF16, numel);
      arrays.emplace_back(DType::BF16, numel);
      for (const StateSpec& spec : state_specs(config, DType::BF16)) {
        arrays.emplace_back(spec.dtype, spec.values_for(numel));
      }
      std::vector<TensorSpan> spans, ends;
      const ShardViews small = expected.views(alone);
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        spans.push_back(arrays[i].span());
        if (spans[i].data == nullptr) GTEST_SKIP() << "this machine refuses 28 GiB of untouched address space";
        const TensorSpan from = i == 0 ? small.param : i == 1 ? small.grad : small.states[i - 2];
        ends.push_back(spans[i].subspan(spans[i].numel - from.numel, from.numel));
        std::memcpy(ends[i].data, from.data, from.bytes());
      }

      CpuOptimizer(*parallel, config, isa)
          .step(context, {spans[0], spans[1], std::span(spans).subspan(2), segments})
          .wait();

      test::define_step(context, expected, alone, kFirst);
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const TensorSpan wanted = i == 0 ? small.param : i == 1 ? small.grad : small.states[i - 2];
        EXPECT_EQ(std::memcmp(ends[i].data, wanted.data, wanted.bytes()), 0) << "array " << i;
      }
      EXPECT_EQ(spans[0].as<std::uint16_t>()[kFirst - 1], 0) << "the element before them";
    }
  }
}

}  // namespace
}  // namespace strata::cpu_adam
