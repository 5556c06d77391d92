#include "bench/published_bytes.h"

namespace strata::bench {

double published_held_bytes(const ZeroSetting& setting, double weight, double gradient, double states) {
  const auto elements = static_cast<double>(setting.elements);
  const double part = elements / static_cast<double>(setting.ranks);
  return weight * (setting.stage >= 3 ? part : elements) + gradient * (setting.stage >= 2 ? part : elements) +
         states * (setting.stage >= 1 ? part : elements);
}

double published_sent_bytes(const ZeroSetting& setting, double weight, double gradient) {
  const auto k = static_cast<double>(setting.micro_batches);
  const bool vertical = setting.accumulation == zero::Accumulation::Vertical;
  double each = 0;
  if (setting.stage == 0) each = 2 * gradient;
  if (setting.stage == 1) each = gradient + weight;
  if (setting.stage == 2) each = (vertical ? gradient : k * weight) + weight;
  if (setting.stage >= 3) each = vertical ? 2 * weight + gradient : 3 * k * weight;
  const auto ranks = static_cast<double>(setting.ranks);
  return each * static_cast<double>(setting.elements) * (ranks - 1) / ranks;
}

}  // namespace strata::bench
