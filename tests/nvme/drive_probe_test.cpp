#include "nvme/drive_probe.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

class DriveProbeTest : public testing::Test {
 protected:
  test::TempDir directory_;
  ProbeOptions options_{.directory = directory_.path(), .bytes = DriveProbe::kLeastBytes};
};

TEST_F(DriveProbeTest, MeasuresEachPatternAndRing) {
  DriveProbe probe(options_);
  for (const Pattern pattern : {Pattern::Read, Pattern::Write, Pattern::Mixed}) {
    for (const RingMode ring : {RingMode::Plain, RingMode::Deferred, RingMode::Polled}) {
      const Sample sample = probe.measure({.pattern = pattern,
                                           .block_bytes = 256 << 10,
                                           .depth = 4,
                                           .ring = ring,
                                           .burst_bytes = 1 << 20,
                                           .seconds = 0});
      EXPECT_GT(sample.rate, 0);
      EXPECT_GE(sample.cpu_per_byte, 0);
    }
  }
}

TEST_F(DriveProbeTest, MeasuresWhileEveryCpuComputes) {
  DriveProbe probe(options_);
  EXPECT_GT(probe.measure({.seconds = 0, .busy = true}).rate, 0);
}

TEST_F(DriveProbeTest, LeavesNothingBehind) {
  {
    DriveProbe probe(options_);
    probe.measure({.seconds = 0});
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(DriveProbeTest, WritesToFreshSpaceWindowByWindow) {
  options_.sustained_bytes = std::uint64_t{16} << 20;
  DriveProbe probe(options_);
  const SustainedReport report = probe.write_sustained({.block_bytes = 1 << 20, .queue_depth = 4});
  EXPECT_EQ(report.window_bytes, options_.sustained_bytes);
  ASSERT_EQ(report.rates.size(), 1u);
  EXPECT_EQ(report.first_rate, report.rates[0]);
  EXPECT_EQ(report.last_rate, report.rates[0]);
}

TEST_F(DriveProbeTest, RefusesADirectoryThatIsNotThere) {
  options_.directory /= "missing";
  EXPECT_THROW(DriveProbe::check(options_), ConfigError);
  EXPECT_THROW(DriveProbe{options_}, ConfigError);
  EXPECT_FALSE(std::filesystem::exists(options_.directory));
}

TEST_F(DriveProbeTest, RefusesAFile) {
  options_.directory /= "file";
  std::ofstream(options_.directory) << "x";
  EXPECT_THROW(DriveProbe::check(options_), ConfigError);
}

TEST_F(DriveProbeTest, RefusesMoreThanTheDriveHasAndSaysWhatItNeeds) {
  options_.sustained_bytes = std::uint64_t{1} << 60;
  try {
    DriveProbe probe(options_);
    FAIL() << "an exbibyte was found";
  } catch (const OutOfBudget& error) {
    EXPECT_EQ(error.need_bytes(), options_.bytes + options_.sustained_bytes + DriveProbe::kSpareBytes);
    EXPECT_LT(error.have_bytes(), error.need_bytes());
  }
}

TEST_F(DriveProbeTest, RefusesTooFewBytes) {
  options_.bytes = DriveProbe::kLeastBytes - 1;
  EXPECT_THROW(DriveProbe::check(options_), ConfigError);
}

}  // namespace
}  // namespace strata::nvme
