#include "nvme/io_meter.h"

#include <gtest/gtest.h>

namespace strata::nvme {
namespace {

using std::chrono::milliseconds;

// A store of two drives in made-up time.
class IoMeterTest : public testing::Test {
 protected:
  // Moves `bytes` in `time` with one request.
  void move(DriveMeter& drive, IoOp op, std::uint64_t bytes, milliseconds time) {
    drive.begin(op);
    now_ += time;
    drive.end(op, bytes);
  }
  DriveStats stats(std::size_t drive) { return meter_.stats().drives.at(drive); }

  IoMeter::Clock::time_point now_{};
  IoMeter meter_{[this] { return now_; }};
  DriveMeter& first_ = meter_.add_drive("/mnt/first");
  DriveMeter& second_ = meter_.add_drive("/mnt/second");
};

constexpr std::uint64_t kWindow = DriveMeter::kWindowBytes;

TEST_F(IoMeterTest, CountsBytesAndBusyTimePerDrive) {
  move(first_, IoOp::Read, 100, milliseconds(10));
  now_ += milliseconds(500);
  move(second_, IoOp::Write, 70, milliseconds(30));
  EXPECT_EQ(stats(0).path, "/mnt/first");
  EXPECT_EQ(stats(0).bytes_read, 100u);
  EXPECT_EQ(stats(0).bytes_written, 0u);
  EXPECT_DOUBLE_EQ(stats(0).busy_seconds, 0.01);
  EXPECT_EQ(stats(1).bytes_written, 70u);
  EXPECT_DOUBLE_EQ(stats(1).write_busy_seconds, 0.03);
  EXPECT_DOUBLE_EQ(stats(1).read_busy_seconds, 0);
}

TEST_F(IoMeterTest, CountsTimeInWhichBothDirectionsRunOnceInTheDrivesBusyTime) {
  first_.begin(IoOp::Read);
  now_ += milliseconds(10);
  first_.begin(IoOp::Write);
  now_ += milliseconds(10);
  first_.end(IoOp::Read, 1);
  now_ += milliseconds(10);
  first_.end(IoOp::Write, 1);
  EXPECT_DOUBLE_EQ(stats(0).read_busy_seconds, 0.02);
  EXPECT_DOUBLE_EQ(stats(0).write_busy_seconds, 0.02);
  EXPECT_DOUBLE_EQ(stats(0).busy_seconds, 0.03);
}

TEST_F(IoMeterTest, CountsTimeInWhichTwoDrivesRunOnceInTheStoresBusyTime) {
  first_.begin(IoOp::Read);
  now_ += milliseconds(10);
  second_.begin(IoOp::Read);
  now_ += milliseconds(10);
  first_.end(IoOp::Read, 1);
  now_ += milliseconds(10);
  EXPECT_DOUBLE_EQ(meter_.stats().read_busy_seconds, 0.03) << "a request in flight counts up to now";
  second_.end(IoOp::Read, 1);
  EXPECT_DOUBLE_EQ(meter_.stats().read_busy_seconds, 0.03);
  EXPECT_DOUBLE_EQ(stats(0).read_busy_seconds, 0.02);
  EXPECT_EQ(meter_.stats().requests, 2u);
}

TEST_F(IoMeterTest, KnowsNoRateBeforeAWindowIsFull) {
  move(first_, IoOp::Read, kWindow - 1, milliseconds(100));
  EXPECT_EQ(stats(0).read_rate, 0);
  move(first_, IoOp::Read, 1, milliseconds(100));
  EXPECT_DOUBLE_EQ(stats(0).read_rate, kWindow / 0.2);
  EXPECT_EQ(stats(0).write_rate, 0);
}

TEST_F(IoMeterTest, LeavesPausesOutOfTheRates) {
  for (int i = 0; i < 4; ++i) {
    move(first_, IoOp::Write, kWindow / 4, milliseconds(50));
    now_ += milliseconds(1000);
  }
  EXPECT_DOUBLE_EQ(stats(0).write_rate, kWindow / 0.2);
}

TEST_F(IoMeterTest, SeesTheFastWriteCacheOfADriveFillUp) {
  constexpr double kFast = kWindow / 0.064;  // per second
  for (int i = 0; i < 80; ++i) move(first_, IoOp::Write, kWindow / 8, milliseconds(8));
  EXPECT_NEAR(stats(0).write_rate, kFast, kFast * 1e-9);
  for (int i = 0; i < 80; ++i) move(first_, IoOp::Write, kWindow / 8, milliseconds(80));
  EXPECT_NEAR(stats(0).write_rate, kFast / 10, kFast * 1e-9);
  EXPECT_NEAR(stats(0).best_write_rate, kFast, kFast * 1e-9);
}

TEST_F(IoMeterTest, KeepsCallersBytesApartFromTheDrives) {
  meter_.count_bytes(IoOp::Write, 5);
  move(first_, IoOp::Write, 4096, milliseconds(1));
  EXPECT_EQ(meter_.stats().bytes_written, 5u);
  EXPECT_EQ(stats(0).bytes_written, 4096u);
}

}  // namespace
}  // namespace strata::nvme
