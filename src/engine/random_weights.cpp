#include "engine/random_weights.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/fnv.h"
#include "core/numeric.h"

namespace strata::engine {
namespace {

constexpr double kStandardDeviation = 0.02;
constexpr std::size_t kGrain = 4096;  // elements that pay for a thread: 20 ns each

// splitmix64 as a counter-based generator (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform in (0, 1].
double uniform(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 1.0) * 0x1.0p-53;
}

float value_of(std::uint64_t stream, std::uint64_t element) {
  const std::uint64_t a = mix(stream + 2 * element);
  const std::uint64_t b = mix(stream + 2 * element + 1);
  // Box and Muller, "A note on the generation of random normal deviates", 1958.
  const double normal = std::sqrt(-2.0 * std::log(uniform(a))) * std::cos(2.0 * std::numbers::pi * uniform(b));
  return static_cast<float>(kStandardDeviation * normal);
}

void store(const TensorSpan& span, std::size_t i, float value) {
  switch (span.dtype) {
    case DType::F32:
      span.as<float>()[i] = value;
      break;
    case DType::BF16:
      span.as<std::uint16_t>()[i] = float_to_bf16(value);
      break;
    case DType::F16:
      span.as<std::uint16_t>()[i] = float_to_half(value);
      break;
    default:
      contract_violation("F32, BF16 or F16", "random weights in another type", __FILE__, __LINE__);
  }
}

}  // namespace

void random_weights(Parallel& threads, const std::string& name, std::uint64_t seed, std::uint64_t first,
                    TensorSpan destination) {
  const bool norm = name.ends_with("norm.weight");
  const bool bias = name.ends_with(".bias");
  const std::uint64_t stream = mix(seed) ^ Fnv1a(name).value();
  threads.parallel_for(destination.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      store(destination, i, norm ? 1.0F : bias ? 0.0F : value_of(stream, first + i));
    }
  });
}

}  // namespace strata::engine
