#include "engine/ideal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"

namespace strata::engine {
namespace {

TEST(DuplexOf, IsZeroWhereReadsAndWritesShareOneRate) {
  // Half a byte each way takes 1/(2R) + 1/(2W) seconds.
  const double mixed = 2 / (1 / 3e9 + 1 / 1.5e9);
  EXPECT_NEAR(duplex_of({3e9, 1.5e9, mixed}), 0, 1e-12);
}

TEST(DuplexOf, IsOneWhereTheSlowerDirectionAloneDecides) {
  EXPECT_NEAR(duplex_of({3e9, 1.5e9, 3e9}), 1, 1e-12);  // as much is read as is written, at 1.5e9 each
}

TEST(DuplexOf, StaysBetweenTheTwoWhateverWasMeasured) {
  EXPECT_EQ(duplex_of({3e9, 1.5e9, 1e8}), 0);
  EXPECT_EQ(duplex_of({3e9, 1.5e9, 9e9}), 1);
}

TEST(DuplexOf, AnUnknownMixedRateIsTakenAsHalfDuplex) {
  EXPECT_EQ(duplex_of({3e9, 1.5e9, 0}), 0);
}

TEST(DriveSeconds, AHalfDuplexDriveMovesOneDirectionAfterTheOther) {
  EXPECT_DOUBLE_EQ(drive_seconds(6'000'000'000, 3'000'000'000, {3e9, 1.5e9, 2e9}), 4);
}

TEST(DriveSeconds, AFullDuplexDriveNeedsTheLongerOfTheTwo) {
  EXPECT_DOUBLE_EQ(drive_seconds(6'000'000'000, 6'000'000'000, {3e9, 1.5e9, 3e9}), 4);
}

TEST(DriveSeconds, NoBytesNeedNoRate) {
  EXPECT_EQ(drive_seconds(0, 0, {}), 0);
  EXPECT_TRUE(std::isinf(drive_seconds(1, 0, {})));
}

TEST(BindingResource, IsTheSlowestOne) {
  const std::vector<ResourceTime> resources{{"compute", 2}, {"nvme /a", 5}, {"nvme /b", 3}};
  EXPECT_EQ(binding_resource(resources).name, "nvme /a");
  EXPECT_EQ(binding_resource(resources).seconds, 5);
  EXPECT_THROW(binding_resource({}), ContractViolation);
}

}  // namespace
}  // namespace strata::engine
