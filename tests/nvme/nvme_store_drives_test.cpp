// What the store says of each of its drives, and what profiles change.
#include <gtest/gtest.h>

#include <set>

#include "nvme/nvme_store.h"
#include "support/patterned_bytes.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

class NvmeStoreDrives : public testing::Test {
 protected:
  NvmeStoreDrives() {
    options_.paths = {first_.path(), second_.path()};
    options_.trace = &trace_;
    options_.chunk_bytes = 16 << 10;  // so that each blob is large enough for both
  }
  // One blob per drive, written and read.
  void use(NvmeStore& store) {
    for (const std::string name : {"one", "two"}) {
      std::vector<std::byte> bytes = test::random_bytes(64 << 10, 1);
      const BlobId blob = store.create(name, bytes.size());
      store.write(blob, 0, bytes).wait();
      store.read(blob, 0, bytes, IoUrgency::Demand).wait();
    }
  }

  test::TempDir first_;
  test::TempDir second_;
  Trace trace_;
  Budget budget_{"nvme", std::uint64_t{1} << 30};
  NvmeOptions options_;
};

TEST_F(NvmeStoreDrives, HaveStatisticsOfTheirOwn) {
  NvmeStore store(options_, budget_);
  use(store);
  const BlobStoreStats stats = store.stats();
  ASSERT_EQ(stats.drives.size(), 2u);
  EXPECT_EQ(stats.drives[0].path, first_.path().string());
  EXPECT_EQ(stats.drives[1].path, second_.path().string());
  std::uint64_t read = 0;
  std::uint64_t written = 0;
  for (const DriveStats& drive : stats.drives) {
    read += drive.bytes_read;
    written += drive.bytes_written;
    EXPECT_GT(drive.busy_seconds, 0);
    EXPECT_LE(drive.busy_seconds, drive.read_busy_seconds + drive.write_busy_seconds + 1e-9);
  }
  EXPECT_EQ(read, 2u * (64 << 10));
  EXPECT_EQ(written, 2u * (64 << 10));
}

TEST_F(NvmeStoreDrives, HaveATraceRowPerDirection) {
  NvmeStore store(options_, budget_);
  use(store);
  std::set<std::uint32_t> rows;
  for (const Trace::Span& span : trace_.spans()) rows.insert(span.row);
  std::set<std::uint32_t> wanted;
  for (const char* name : {"nvme0 read", "nvme0 write", "nvme1 read", "nvme1 write"}) {
    wanted.insert(trace_.row(name, Trace::Row::Overlapping));
  }
  EXPECT_EQ(rows, wanted);
}

// Largest request, entries and mode that reach the backend of path 0.
BackendOptions backend_options_of(const NvmeOptions& options, Budget& budget) {
  std::vector<BackendOptions> made;
  NvmeStore store(options, budget, [&made](const BackendOptions& backend) {
    made.push_back(backend);
    return make_io_backend(backend);
  });
  return made.at(0);
}

TEST_F(NvmeStoreDrives, AreUsedAsTheirProfileSays) {
  options_.profiles.resize(2);
  options_.profiles[0] = {.block_bytes = 16 << 10, .queue_depth = 3, .ring = RingMode::Plain};
  const BackendOptions made = backend_options_of(options_, budget_);
  EXPECT_EQ(made.uring.entries, 3u);
  EXPECT_EQ(made.uring.mode, RingMode::Plain);
  NvmeStore store(options_, budget_);
  std::vector<std::byte> bytes(64 << 10);
  store.write(store.create("blob", bytes.size()), 0, bytes).wait();
  std::size_t largest = 0;
  for (const Trace::Span& span : trace_.spans()) largest = std::max<std::size_t>(largest, span.bytes);
  EXPECT_EQ(largest, 16u << 10);
}

TEST_F(NvmeStoreDrives, AreUsedAsTheOptionsSayWhereTheySaySomething) {
  options_.profiles.resize(2);
  options_.profiles[0].queue_depth = 3;
  options_.queue_depth = 5;
  EXPECT_EQ(backend_options_of(options_, budget_).uring.entries, 5u);
}

}  // namespace
}  // namespace strata::nvme
