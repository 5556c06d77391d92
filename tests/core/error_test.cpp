#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace strata {
namespace {

using ::testing::HasSubstr;

TEST(IoError, MessageHasEveryValueAndTheHint) {
  const IoError error({.errno_value = ENOSPC,
                       .op = "write",
                       .path = "/nvme/0.bin",
                       .offset_bytes = 8192,
                       .bytes = 4096,
                       .hint = "Free space on the drive."});

  EXPECT_STREQ(error.what(),
               "write /nvme/0.bin at offset 8192, 4096 bytes: No space left on device (errno 28). "
               "Free space on the drive.");
}

TEST(IoError, MessageWithoutHintEndsAfterTheErrorNumber) {
  const IoError error({.errno_value = EIO, .op = "read", .path = "a", .offset_bytes = 0, .bytes = 1, .hint = ""});

  EXPECT_STREQ(error.what(), "read a at offset 0, 1 bytes: Input/output error (errno 5).");
}

TEST(IoError, MessageOfAShortTransferDoesNotSaySuccess) {
  const IoError error({.errno_value = 0, .op = "read", .path = "a", .offset_bytes = 0, .bytes = 9, .hint = ""});

  EXPECT_STREQ(error.what(), "read a at offset 0, 9 bytes: fewer bytes than wanted (errno 0).");
}

TEST(IoError, KeepsTheFailure) {
  const IoError error({.errno_value = EIO, .op = "read", .path = "a", .offset_bytes = 3, .bytes = 4, .hint = "h"});

  EXPECT_EQ(error.failure().errno_value, EIO);
  EXPECT_EQ(error.failure().offset_bytes, 3U);
  EXPECT_EQ(error.failure().hint, "h");
}

TEST(Expects, DoesNothingWhenTheConditionHolds) {
  EXPECT_NO_THROW(STRATA_EXPECTS(1 + 1 == 2, "sum"));
}

TEST(Expects, ThrowsWithTheConditionTheMessageAndThePlace) {
  try {
    STRATA_EXPECTS(1 + 1 == 3, "the sum is off");
    FAIL();
  } catch (const ContractViolation& error) {
    EXPECT_THAT(error.what(), HasSubstr("the sum is off"));
    EXPECT_THAT(error.what(), HasSubstr("1 + 1 == 3"));
    EXPECT_THAT(error.what(), HasSubstr("(error_test.cpp:"));
  }
}

TEST(Errors, CorruptionIsADataError) {
  EXPECT_THROW(throw CorruptionError("checksum"), DataError);
}

TEST(OutOfBudget, KeepsTheBytes) {
  const OutOfBudget error("no", 10, 4);

  EXPECT_EQ(error.need_bytes(), 10U);
  EXPECT_EQ(error.have_bytes(), 4U);
}

}  // namespace
}  // namespace strata
