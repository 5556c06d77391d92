#include "nvme/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace strata::nvme {
namespace {

constexpr double kGb = 1e9;

// A drive whose rate grows with the bytes in flight up to `enough_in_flight`; the rest is up to the test.
class SimulatedDrive final : public Probe {
 public:
  double read_rate = 3 * kGb;
  double write_rate = 1.5 * kGb;
  std::size_t enough_in_flight = std::size_t{4} << 20;
  double mixed_share = 1;  // of one direction after the other
  std::uint64_t enough_burst = 0;
  std::vector<RingMode> modes{RingMode::Plain, RingMode::Deferred, RingMode::Polled};
  std::function<Sample(RingMode)> ring = [](RingMode) { return Sample{1, 1e-10}; };  // factors
  double busy_polling = 1;  // factor of polled rings while every CPU computes
  double noise = 0;
  double drift = 0;  // of the rate, per trial

  Sample measure(const Trial& trial) override {
    trials.push_back(trial);
    const double in_flight = static_cast<double>(trial.block_bytes * trial.depth);
    double rate = trial.pattern == Pattern::Read ? read_rate : write_rate;
    if (trial.pattern == Pattern::Mixed) {
      rate = 2 / (1 / read_rate + 1 / write_rate);
      if (trial.burst_bytes == 0 || trial.burst_bytes < enough_burst) rate *= mixed_share;
    }
    rate *= std::min(1.0, in_flight / static_cast<double>(enough_in_flight)) * ring(trial.ring).rate;
    if (trial.busy && trial.ring == RingMode::Polled) rate *= busy_polling;
    rate *= 1 + noise * std::uniform_real_distribution<double>(-1, 1)(random_);
    rate *= 1 + drift * static_cast<double>(trials.size());
    return {rate, ring(trial.ring).cpu_per_byte};
  }
  bool knows(RingMode mode) override { return std::find(modes.begin(), modes.end(), mode) != modes.end(); }

  std::vector<Trial> trials;

 private:
  std::mt19937_64 random_{1};
};

std::size_t in_flight(const DeviceProfile& profile) {
  return profile.block_bytes * profile.queue_depth;
}

TEST(Tune, TakesTheFewestBytesInFlightThatGiveTheFullRate) {
  SimulatedDrive drive;
  const TuneReport report = tune(drive, {});
  EXPECT_EQ(in_flight(report.profile), drive.enough_in_flight);
  EXPECT_NEAR(report.profile.read_rate, 3 * kGb, 1);
  EXPECT_NEAR(report.profile.write_rate, 1.5 * kGb, 1);
}

TEST(Tune, TakesLittleInFlightWhereItMakesNoDifference) {
  SimulatedDrive drive;
  drive.enough_in_flight = 1;
  const DeviceProfile profile = tune(drive, {}).profile;
  EXPECT_EQ(in_flight(profile), std::size_t{512} << 10) << "the least that is tried";
}

TEST(Tune, IsNotMisledByADriveThatBecomesFasterWhileItIsMeasured) {
  SimulatedDrive drive;
  drive.drift = 0.0005;  // 2 % while a round lasts, 14 % in all
  EXPECT_EQ(in_flight(tune(drive, {}).profile), drive.enough_in_flight);
}

TEST(Tune, StaysWithPlainRingsAndNoBurstsWhenOnlyNoiseTellsThemApart) {
  for (const double noise : {0.01, 0.1, 0.3}) {
    SimulatedDrive drive;
    drive.noise = noise;
    const DeviceProfile profile = tune(drive, {.seconds = 60}).profile;
    EXPECT_EQ(profile.ring, RingMode::Plain) << noise;
    EXPECT_EQ(profile.burst_bytes, 0u) << noise;
  }
}

TEST(Tune, TakesARingThatIsClearlyFaster) {
  SimulatedDrive drive;
  drive.ring = [](RingMode mode) { return Sample{mode == RingMode::Polled ? 1.3 : 1, 1e-10}; };
  EXPECT_EQ(tune(drive, {}).profile.ring, RingMode::Polled);
}

TEST(Tune, TakesARingThatIsAsFastForClearlyLessCpu) {
  SimulatedDrive drive;
  drive.ring = [](RingMode mode) { return Sample{1, mode == RingMode::Deferred ? 0.5e-10 : 1e-10}; };
  EXPECT_EQ(tune(drive, {}).profile.ring, RingMode::Deferred);
}

TEST(Tune, DoesNotTakeASlowerRingForItsLowCpu) {
  SimulatedDrive drive;
  drive.ring = [](RingMode mode) { return mode == RingMode::Deferred ? Sample{0.8, 0.1e-10} : Sample{1, 1e-10}; };
  EXPECT_EQ(tune(drive, {}).profile.ring, RingMode::Plain);
}

TEST(Tune, DoesNotTakeARingThatLosesItsSpeedWhenTheCpusCompute) {
  SimulatedDrive drive;
  drive.ring = [](RingMode mode) { return Sample{mode == RingMode::Polled ? 1.3 : 1, 1e-10}; };
  drive.busy_polling = 0.2;
  EXPECT_EQ(tune(drive, {}).profile.ring, RingMode::Plain);
}

TEST(Tune, TriesOnlyRingsThatThereAre) {
  SimulatedDrive drive;
  drive.modes = {RingMode::Plain};
  EXPECT_EQ(tune(drive, {}).rings.size(), 1u);
  for (const Trial& trial : drive.trials) ASSERT_EQ(trial.ring, RingMode::Plain);
}

TEST(Tune, MeasuresADriveWithoutAnyRing) {
  SimulatedDrive drive;
  drive.modes = {};
  const TuneReport report = tune(drive, {});
  EXPECT_TRUE(report.rings.empty());
  EXPECT_EQ(in_flight(report.profile), drive.enough_in_flight);
}

TEST(Tune, MixesWhereMixingCostsNothing) {
  SimulatedDrive drive;
  const TuneReport report = tune(drive, {});
  EXPECT_TRUE(report.half_duplex) << "no faster than one direction after the other";
  EXPECT_EQ(report.profile.burst_bytes, 0u);
  EXPECT_NEAR(report.profile.mixed_rate, 2 * kGb, 1);
}

TEST(Tune, TakesTheSmallestBurstThatAvoidsWhatMixingCosts) {
  SimulatedDrive drive;
  drive.mixed_share = 0.7;
  drive.enough_burst = std::uint64_t{16} << 20;
  const TuneReport report = tune(drive, {});
  EXPECT_EQ(report.profile.burst_bytes, drive.enough_burst);
  EXPECT_TRUE(report.half_duplex);
  EXPECT_NEAR(report.profile.mixed_rate, 2 * kGb, 1);
}

TEST(Tune, SeesThatDirectionsDoNotDisturbEachOther) {
  SimulatedDrive drive;
  drive.mixed_share = 1.5;  // bursts give 1
  const TuneReport report = tune(drive, {});
  EXPECT_FALSE(report.half_duplex);
  EXPECT_EQ(report.profile.burst_bytes, 0u);
}

TEST(Tune, AlternatesItsCandidatesAndKeepsAboutToItsTime) {
  SimulatedDrive drive;
  const TuneReport report = tune(drive, {.seconds = 40});
  double seconds = 0;
  for (const Trial& trial : drive.trials) seconds += trial.seconds;
  EXPECT_NEAR(seconds, 40, 5);
  EXPECT_GE(report.rounds, 5u);
  // In the first sweep a size comes again only when all others had their turn.
  EXPECT_NE(drive.trials[0].block_bytes * drive.trials[0].depth, drive.trials[2].block_bytes * drive.trials[2].depth);
}

TEST(Tune, MakesThreeRoundsHoweverLittleTimeThereIs) {
  SimulatedDrive drive;
  const TuneReport report = tune(drive, {.seconds = 0.01});
  EXPECT_EQ(report.rounds, 3u);
  EXPECT_LT(drive.trials[0].seconds, 0.001);
}

}  // namespace
}  // namespace strata::nvme
