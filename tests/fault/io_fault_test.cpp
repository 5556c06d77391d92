// The NVMe store on a backend that makes requests short, interrupted, late, reordered or failed.
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "nvme/nvme_store.h"
#include "support/faulty_io_backend.h"
#include "support/patterned_bytes.h"
#include "support/temp_dir.h"

namespace strata::test {
namespace {

struct Case {
  const char* name;
  IoFaults faults;
  nvme::BackendKind kind = nvme::BackendKind::Auto;
  nvme::IoMode mode = nvme::IoMode::Direct;
  std::size_t paths = 1;
};

class IoFaultTest : public testing::TestWithParam<Case> {
 protected:
  explicit IoFaultTest(std::uint64_t seed_offset = 0) {
    nvme::NvmeOptions options;
    for (std::size_t path = 0; path < GetParam().paths; ++path) options.paths.push_back(directory_.path());
    options.chunk_bytes = 96 << 10;
    options.checksums = GetParam().paths > 1;
    options.block_bytes = 32 << 10;
    options.queue_depth = 7;
    options.backend = GetParam().kind;
    options.mode = GetParam().mode;
    IoFaults faults = GetParam().faults;
    faults.seed += seed_offset;
    store_.emplace(options, budget_, [faults](const nvme::BackendOptions& backend) {
      return std::make_unique<FaultyIoBackend>(nvme::make_io_backend(backend), faults);
    });
  }

  TempDir directory_;
  Budget budget_{"nvme", std::uint64_t{1} << 30};
  std::optional<nvme::NvmeStore> store_;
};

TEST_P(IoFaultTest, KeepsEveryByteThroughFaultsThatCanBeOvercome) {
  SCOPED_TRACE("seed " + std::to_string(GetParam().faults.seed));
  std::mt19937_64 random(GetParam().faults.seed);
  std::vector<std::byte> model = random_bytes(2'000'003, 1);
  const BlobId blob = store_->create("blob", model.size());
  store_->write(blob, 0, model).wait();
  for (int i = 0; i < 150; ++i) {
    const std::size_t bytes = 1 + random() % (i % 4 == 0 ? model.size() : 70'000);
    const std::size_t offset = random() % (model.size() - bytes + 1);
    const std::vector<std::byte> sent = random_bytes(bytes, random());
    std::copy(sent.begin(), sent.end(), model.begin() + static_cast<std::ptrdiff_t>(offset));
    GuardedBytes memory(bytes, random() % 2 == 0 ? 0 : random() % 4096);
    std::copy(sent.begin(), sent.end(), memory.span().begin());
    store_->write(blob, offset, memory.span()).wait();
  }
  GuardedBytes memory(model.size(), 0);
  store_->read(blob, 0, memory.span(), IoUrgency::Demand).wait();
  EXPECT_TRUE(std::equal(model.begin(), model.end(), memory.span().begin()));
  EXPECT_TRUE(memory.guards_intact());
}

TEST_P(IoFaultTest, KeepsDisjointWritesThatShareBlocksApart) {
  constexpr std::size_t kPiece = 1500;
  const std::vector<std::byte> sent = random_bytes(kPiece * 300, 2);
  const BlobId blob = store_->create("blob", sent.size());
  std::vector<Event> events;
  for (std::size_t begin = 0; begin < sent.size(); begin += kPiece) {
    events.push_back(store_->write(blob, begin, std::span(sent).subspan(begin, kPiece)));
  }
  when_all(events).wait();
  std::vector<std::byte> received(sent.size());
  store_->read(blob, 0, received, IoUrgency::Prefetch).wait();
  EXPECT_EQ(received, sent);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, IoFaultTest,
    testing::Values(Case{"Short", {.seed = 11, .short_per_mille = 500}},
                    Case{"ShortAndUnaligned", {.seed = 12, .short_per_mille = 400, .under_report_per_mille = 500}},
                    Case{"Interrupted", {.seed = 13, .eagain_per_mille = 200, .eintr_per_mille = 200}},
                    Case{"LateAndReordered", {.seed = 14, .shuffle = true}},
                    Case{"Everything",
                         {.seed = 15,
                          .short_per_mille = 300,
                          .under_report_per_mille = 300,
                          .eagain_per_mille = 100,
                          .eintr_per_mille = 100,
                          .shuffle = true}},
                    Case{"EverythingThreads",
                         {.seed = 16, .short_per_mille = 300, .eagain_per_mille = 100, .shuffle = true},
                         nvme::BackendKind::Threads},
                    Case{"EverythingBuffered",
                         {.seed = 17,
                          .short_per_mille = 300,
                          .under_report_per_mille = 300,
                          .eintr_per_mille = 100,
                          .shuffle = true,
                          .granularity = 7},
                         nvme::BackendKind::Auto,
                         nvme::IoMode::Buffered},
                    Case{"EverythingStripedAndChecked",
                         {.seed = 18,
                          .short_per_mille = 300,
                          .under_report_per_mille = 300,
                          .eagain_per_mille = 100,
                          .eintr_per_mille = 100,
                          .shuffle = true},
                         nvme::BackendKind::Auto,
                         nvme::IoMode::Direct,
                         3}),
    [](const testing::TestParamInfo<Case>& tried) { return tried.param.name; });

struct Failing {
  const char* name;
  IoFaults faults;
  int error;
  std::size_t paths;
};

class FailingDriveTest : public testing::TestWithParam<Failing> {};

// With several paths chunks are checked as well: a failed write must leave them unverified, not wrong.
TEST_P(FailingDriveTest, ReportsEveryTransferThatMetAnErrorAndKeepsTheOthers) {
  TempDir directory;
  Budget budget("nvme", std::uint64_t{1} << 30);
  nvme::NvmeOptions options;
  for (std::size_t path = 0; path < GetParam().paths; ++path) options.paths.push_back(directory.path());
  options.chunk_bytes = 16 << 10;
  options.checksums = GetParam().paths > 1;
  options.block_bytes = 16 << 10;
  options.queue_depth = 5;
  nvme::NvmeStore store(options, budget, [](const nvme::BackendOptions& backend) {
    return std::make_unique<FaultyIoBackend>(nvme::make_io_backend(backend), GetParam().faults);
  });
  std::size_t failed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<std::byte> sent = random_bytes(1 + seed * 331, seed);
    const BlobId blob = store.create("blob", sent.size());
    std::vector<std::byte> received(sent.size());
    bool written = false;
    try {
      store.write(blob, 0, sent).wait();
      written = true;
      store.read(blob, 0, received, IoUrgency::Demand).wait();
      EXPECT_EQ(received, sent) << "lost bytes without an error";
    } catch (const IoError& error) {
      ++failed;
      EXPECT_EQ(error.failure().errno_value, GetParam().error);
    }
    if (written) continue;
    try {
      store.read(blob, 0, received, IoUrgency::Demand).wait();
    } catch (const IoError&) {  // but no CorruptionError
    }
  }
  EXPECT_GT(failed, 0u);
  EXPECT_LT(failed, 200u);
}

INSTANTIATE_TEST_SUITE_P(
    Errors, FailingDriveTest,
    testing::Values(Failing{"Eio", {.seed = 21, .short_per_mille = 100, .eio_per_mille = 20, .shuffle = true}, EIO, 1},
                    Failing{"Enospc", {.seed = 22, .short_per_mille = 100, .enospc_per_mille = 20}, ENOSPC, 1},
                    Failing{"EioOnOneOfThreePaths", {.seed = 23, .eio_per_mille = 20, .shuffle = true}, EIO, 3}),
    [](const testing::TestParamInfo<Failing>& tried) { return tried.param.name; });

}  // namespace
}  // namespace strata::test
