#include "nvme/nvme_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/buffer.h"
#include "core/error.h"
#include "support/patterned_bytes.h"
#include "support/small_mount.h"
#include "support/tampering_io_backend.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

NvmeOptions options_for(const fs::path& path) {
  NvmeOptions options;
  options.paths = {path};
  options.queue_depth = 4;
  return options;
}

std::vector<std::byte> round_trip(NvmeStore& store, const std::vector<std::byte>& sent) {
  const BlobId blob = store.create("blob", sent.size());
  store.write(blob, 0, sent).wait();
  std::vector<std::byte> received(sent.size());
  store.read(blob, 0, received, IoUrgency::Demand).wait();
  return received;
}

template <typename ErrorType>
std::string message_for(const NvmeOptions& options) {
  Budget budget("nvme", kGiB);
  try {
    const NvmeStore store(options, budget);
  } catch (const ErrorType& error) {
    return error.what();
  }
  ADD_FAILURE() << "the store was made";
  return "";
}

TEST(NvmeStore, LeavesNoNameInTheDirectoryWhileItRuns) {
  test::TempDir directory;
  Budget budget("nvme", kGiB);
  NvmeStore store(options_for(directory.path()), budget);
  round_trip(store, test::random_bytes(10'000, 1));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(NvmeStore, GivesSpaceBackAtTheEnd) {
  test::TempDir directory;
  const std::uint64_t before = fs::space(directory.path()).free;
  Budget budget("nvme", kGiB);
  {
    NvmeStore store(options_for(directory.path()), budget);
    store.create("blob", 512 << 20);
    EXPECT_EQ(budget.used(), std::uint64_t{512} << 20);
    EXPECT_LT(fs::space(directory.path()).free, before - (256 << 20)) << "space was not reserved";
  }
  EXPECT_EQ(budget.used(), 0u);
}

// Runs in a child process.
[[noreturn]] void write_and_be_killed(const fs::path& path) {
  Budget budget("nvme", kGiB);
  NvmeStore store(options_for(path), budget);
  round_trip(store, test::random_bytes(1 << 20, 1));
  ::raise(SIGKILL);
  std::_Exit(1);
}

TEST(NvmeStoreDeathTest, LeavesNothingBehindWhenItIsKilled) {
  testing::FLAGS_gtest_death_test_style = "fast";  // the child must see this directory, not one of its own
  test::TempDir directory;
  EXPECT_EXIT(write_and_be_killed(directory.path()), testing::KilledBySignal(SIGKILL), "");
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(NvmeStore, TouchesNoForeignFile) {
  test::TempDir directory;
  // The name that a file would get where it needs one for a moment.
  const fs::path foreign = directory.path() / ("strata-swap-" + std::to_string(::getpid()) + "-0");
  std::ofstream(foreign) << "keep me";
  Budget budget("nvme", kGiB);
  {
    NvmeStore store(options_for(directory.path()), budget);
    round_trip(store, test::random_bytes(10'000, 1));
  }
  std::string text;
  std::getline(std::ifstream(foreign), text);
  EXPECT_EQ(text, "keep me");
}

TEST(NvmeStore, KeepsTwoStoresInOneDirectoryApart) {
  test::TempDir directory;
  Budget budget("nvme", kGiB);
  NvmeStore first(options_for(directory.path()), budget);
  NvmeStore second(options_for(directory.path()), budget);
  const BlobId a = first.create("blob", 10'000);
  const BlobId b = second.create("blob", 10'000);
  const std::vector<std::byte> sent = test::random_bytes(10'000, 1);
  first.write(a, 0, sent).wait();
  second.write(b, 0, test::random_bytes(10'000, 2)).wait();
  std::vector<std::byte> received(10'000);
  first.read(a, 0, received, IoUrgency::Demand).wait();
  EXPECT_EQ(received, sent);
}

TEST(NvmeStore, ReservesWholeBlocksFromTheBudget) {
  test::TempDir directory;
  Budget budget("nvme", 2 * kPageBytes);
  NvmeStore store(options_for(directory.path()), budget);
  store.create("first", 1);
  EXPECT_EQ(budget.used(), kPageBytes);
  EXPECT_THROW(store.create("second", kPageBytes + 1), OutOfBudget);
  EXPECT_NO_THROW(store.create("third", kPageBytes));
}

TEST(NvmeStore, SpreadsBlobsOverItsPaths) {
  test::TempDir directory;
  fs::create_directory(directory.path() / "a");
  fs::create_directory(directory.path() / "b");
  NvmeOptions options = options_for(directory.path() / "a");
  options.paths.push_back(directory.path() / "b");
  Budget budget("nvme", kGiB);
  NvmeStore store(options, budget);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::vector<std::byte> sent = test::random_bytes(10'000, seed);
    EXPECT_EQ(round_trip(store, sent), sent);
  }
}

TEST(NvmeStore, ReadsAndWritesBeyondFourGigabytes) {
  test::TempDir directory;
  NvmeOptions options = options_for(directory.path());
  if (fs::space(directory.path()).available < 8 * kGiB) GTEST_SKIP() << "less than 8 GiB free";
  Budget budget("nvme", 6 * kGiB);
  NvmeStore store(options, budget);
  const BlobId blob = store.create("large", 5 * kGiB + 17);  // reserved, but hardly written
  const std::vector<std::byte> sent = test::random_bytes(2 << 20, 1);
  store.write(blob, 5 * kGiB + 17 - sent.size(), sent).wait();
  std::vector<std::byte> received(sent.size());
  store.read(blob, 5 * kGiB + 17 - sent.size(), received, IoUrgency::Demand).wait();
  EXPECT_EQ(received, sent);
  std::vector<std::byte> wrapped(4096, std::byte{1});
  store.read(blob, kGiB - (2 << 20), wrapped, IoUrgency::Demand).wait();  // where 32-bit offsets would have gone
  EXPECT_EQ(wrapped, std::vector<std::byte>(4096));
}

TEST(NvmeStore, ReadsAndWritesChunksBeyondFourGigabytes) {
  test::TempDir directory;
  NvmeOptions options = options_for(directory.path());
  options.checksums = true;
  if (fs::space(directory.path()).available < 8 * kGiB) GTEST_SKIP() << "less than 8 GiB free";
  Budget budget("nvme", 6 * kGiB);
  NvmeStore store(options, budget);
  const std::uint64_t size = 5 * kGiB + 17;
  const BlobId blob = store.create("large", size);                     // reserved, but hardly written
  const std::vector<std::byte> sent = test::random_bytes(9 << 20, 1);  // whole chunks and parts of two more
  std::vector<std::byte> received(sent.size());
  for (const std::uint64_t offset : {4 * kGiB - (3 << 20), size - sent.size(), 2 * kGiB - (3 << 20)}) {
    store.write(blob, offset, sent).wait();
    store.read(blob, offset, received, IoUrgency::Demand).wait();
    EXPECT_EQ(received, sent) << offset;
  }
}

// The kernel cuts one request at 2 GiB - 4 KiB, so what matters is that none is larger and that together they cover the
// transfer. Nothing is moved here: the backend only takes notes.
TEST(NvmeStore, CutsATransferOfMoreThanTwoGigabytesIntoRequestsThatCoverIt) {
  test::TempDir directory;
  NvmeOptions options = options_for(directory.path());
  options.block_bytes = kMaxRequestBytes;
  const std::uint64_t size = 2 * kGiB + (512 << 20) + kPageBytes;
  if (fs::space(directory.path()).available < 2 * size) GTEST_SKIP() << "less than 5 GiB free";
  void* const reserved =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(reserved, MAP_FAILED);
  std::vector<IoRequest> requests;  // of the I/O thread, until the event is complete
  Budget budget("nvme", 3 * kGiB);
  NvmeStore store(options, budget, [&](const BackendOptions& backend) {
    return std::make_unique<test::TamperingIoBackend>(make_io_backend(backend), [&](IoRequest& request) {
      requests.push_back(request);
      return test::TamperingIoBackend::Verdict::Lose;
    });
  });
  const BlobId blob = store.create("huge", size);
  store.write(blob, 0, {static_cast<const std::byte*>(reserved), size}).wait();
  std::sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::uint64_t next = 0;
  for (const IoRequest& request : requests) {
    EXPECT_EQ(request.offset, next);
    EXPECT_EQ(request.data, static_cast<std::byte*>(reserved) + next);
    EXPECT_LE(request.bytes, kMaxRequestBytes);
    next += request.bytes;
  }
  EXPECT_EQ(next, size);
  EXPECT_EQ(requests.size(), 3u);
  ::munmap(reserved, size);
}

// What the ctest entry with little locked memory runs; without the limit it is a plain round trip.
TEST(NvmeStoreLockedMemory, KeepsEveryByteOfRegionsThatMayNotBeRegistered) {
  test::TempDir directory;
  Budget host("host", kGiB);
  const Buffer memory = allocate_host(host, 8 << 20, MemoryTag::Staging);
  NvmeOptions options = options_for(directory.path());
  fs::create_directory(directory.path() / "second");
  options.paths.push_back(directory.path() / "second");  // a ring per path, but one warning
  options.regions = {memory.span()};
  Budget budget("nvme", kGiB);
  NvmeStore store(options, budget);
  const std::vector<std::byte> sent = test::random_bytes(memory.span().size(), 1);
  std::copy(sent.begin(), sent.end(), memory.span().begin());
  const BlobId blob = store.create("blob", sent.size());
  store.write(blob, 0, memory.span()).wait();
  std::fill(memory.span().begin(), memory.span().end(), std::byte{0});
  store.read(blob, 0, memory.span(), IoUrgency::Demand).wait();
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory.span().begin()));
}

TEST(NvmeStore, CreatesTheLastComponentOfAPathAndRemovesItAgain) {
  test::TempDir directory;
  const fs::path path = directory.path() / "swap";
  Budget budget("nvme", kGiB);
  {
    NvmeStore store(options_for(path), budget);
    EXPECT_TRUE(fs::is_directory(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(NvmeStore, KeepsADirectoryItCreatedWhenSomethingElseLiesInIt) {
  test::TempDir directory;
  const fs::path path = directory.path() / "swap";
  Budget budget("nvme", kGiB);
  {
    NvmeStore store(options_for(path), budget);
    std::ofstream(path / "foreign") << "x";
  }
  EXPECT_TRUE(fs::exists(path / "foreign"));
}

TEST(NvmeStore, KeepsADirectoryThatWasThere) {
  test::TempDir directory;
  Budget budget("nvme", kGiB);
  { NvmeStore store(options_for(directory.path()), budget); }
  EXPECT_TRUE(fs::is_directory(directory.path()));
}

TEST(NvmeStorePaths, RefusesAPathThatIsNoDirectory) {
  EXPECT_NE(message_for<ConfigError>(options_for("/dev/null")).find("/dev/null is not a directory"), std::string::npos);
}

TEST(NvmeStorePaths, RefusesAPathWithoutParent) {
  test::TempDir directory;
  const std::string message = message_for<ConfigError>(options_for(directory.path() / "no" / "such"));
  EXPECT_NE(message.find("parent"), std::string::npos) << message;
}

TEST(NvmeStorePaths, RefusesADanglingLink) {
  test::TempDir directory;
  fs::create_symlink("/nowhere/at/all", directory.path() / "link");
  const std::string message = message_for<ConfigError>(options_for(directory.path() / "link"));
  EXPECT_NE(message.find("/nowhere/at/all"), std::string::npos) << message;
}

TEST(NvmeStorePaths, FollowsALinkToADirectory) {
  test::TempDir directory;
  fs::create_directory(directory.path() / "real");
  fs::create_directory_symlink(directory.path() / "real", directory.path() / "link");
  Budget budget("nvme", kGiB);
  EXPECT_NO_THROW(NvmeStore(options_for(directory.path() / "link"), budget));
}

TEST(NvmeStorePaths, RefusesAReadOnlyDirectoryByName) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=64k,ro");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const std::string message = message_for<IoError>(options_for(mount.path()));
  EXPECT_NE(message.find(mount.path().string()), std::string::npos) << message;
  EXPECT_NE(message.find("Read-only"), std::string::npos) << message;
}

TEST(NvmeStorePaths, RemovesWhatItCreatedWhenALaterPathIsWrong) {
  test::TempDir directory;
  NvmeOptions options = options_for(directory.path() / "swap");
  options.paths.push_back("/dev/null");
  message_for<ConfigError>(options);
  EXPECT_FALSE(fs::exists(directory.path() / "swap"));
}

TEST(NvmeStoreOptions, NamesTheOptionThatIsOutOfRange) {
  test::TempDir directory;
  NvmeOptions options = options_for(directory.path());
  options.block_bytes = 5000;
  EXPECT_NE(message_for<ConfigError>(options).find("nvme.block_size"), std::string::npos);
  options = options_for(directory.path());
  options.queue_depth = 0;
  EXPECT_NE(message_for<ConfigError>(options).find("nvme.queue_depth"), std::string::npos);
  options = options_for(directory.path());
  options.io_threads = 0;
  EXPECT_NE(message_for<ConfigError>(options).find("nvme.io_threads"), std::string::npos);
  options = options_for(directory.path());
  options.chunk_bytes = 5000;
  EXPECT_NE(message_for<ConfigError>(options).find("nvme.chunk_bytes"), std::string::npos);
  options = options_for(directory.path());
  options.paths.clear();
  EXPECT_NE(message_for<ConfigError>(options).find("nvme.paths"), std::string::npos);
}

std::string no_space_message(const fs::path& path, std::uint64_t bytes, std::uint64_t usable_before) {
  Budget budget("nvme", kGiB);
  NvmeStore store(options_for(path), budget);
  store.create("small", usable_before);
  try {
    store.create("weights", bytes);
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOSPC);
    EXPECT_EQ(budget.used(), usable_before) << "a refused blob kept its reservation";
    const std::vector<std::byte> sent = test::random_bytes(100'000, 1);
    EXPECT_EQ(round_trip(store, sent), sent) << "the store is unusable after a refusal";
    return error.what();
  }
  ADD_FAILURE() << "more was reserved than the file system holds";
  return "";
}

TEST(NvmeStoreOnFullDisk, RefusesABlobAtOnceWithNeededAndFreeBytes) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=2m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const std::string message = no_space_message(mount.path(), 4 << 20, 1 << 20);
  for (const std::string& part :
       {mount.path().string(), std::string("weights"), std::string("needs 4.00 MiB"), std::string("1.00 MiB free")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is missing in: " << message;
  }
}

TEST(NvmeStoreOnFullDisk, RefusesABlobOnExt4) {
  const test::SmallMount mount = test::SmallMount::image("ext4", 64);
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  EXPECT_NE(no_space_message(mount.path(), 400 << 20, 1 << 20).find("needs 400.00 MiB"), std::string::npos);
}

TEST(NvmeStoreOnFullDisk, RefusesABlobWhereSpaceCannotBePreallocated) {
  const test::SmallMount mount = test::SmallMount::image("ext2", 16);
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  EXPECT_NE(no_space_message(mount.path(), 400 << 20, 1 << 20).find("needs 400.00 MiB"), std::string::npos);
}

TEST(NvmeStoreOnFullDisk, ReportsAWriteThatFindsTheDiskFullWithWhatWasMoved) {
  const test::SmallMount mount = test::SmallMount::image("ext2", 16);
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  Budget budget("nvme", kGiB);
  NvmeStore store(options_for(mount.path()), budget);
  const BlobId blob = store.create("weights", 8 << 20);  // promised only: ext2 cannot preallocate
  std::ofstream ballast(mount.path() / "ballast");
  const std::string filling(1 << 20, 'x');
  while (ballast.write(filling.data(), static_cast<std::streamsize>(filling.size())).flush()) {
  }
  test::GuardedBytes memory(8 << 20, 0);
  try {
    store.write(blob, 0, memory.span()).wait();
    FAIL() << "8 MiB were written to a full disk";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOSPC);
    EXPECT_EQ(error.failure().op, "write");
    const std::string message = error.what();
    EXPECT_NE(message.find(mount.path().string()), std::string::npos) << message;
    EXPECT_NE(message.find("of 8388608 bytes were moved"), std::string::npos) << message;
  }
}

TEST(NvmeStoreFileSystems, FallsBackToBufferedOnRamfsWithOneWarningThatNamesTheDirectory) {
  const test::SmallMount mount = test::SmallMount::memory("ramfs", "");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  Budget budget("nvme", kGiB);
  testing::internal::CaptureStderr();
  {
    NvmeStore store(options_for(mount.path()), budget);
    const NvmeStore again(options_for(mount.path()), budget);
    EXPECT_EQ(store.mode_of_path(0), IoMode::Buffered);
    const std::vector<std::byte> sent = test::random_bytes(100'003, 1);
    EXPECT_EQ(round_trip(store, sent), sent);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find(mount.path().string());
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "more than one line: " << said;
}

TEST(NvmeStoreFileSystems, UsesDirectIoOnTheTemporaryDirectoryWhereTheKernelCan) {
  test::TempDir directory;
  Budget budget("nvme", kGiB);
  const NvmeStore store(options_for(directory.path()), budget);
  if (store.mode_of_path(0) != IoMode::Direct) GTEST_SKIP() << "no direct I/O in " << directory.path();
  NvmeOptions options = options_for(directory.path());
  options.mode = IoMode::Buffered;
  const NvmeStore buffered(options, budget);
  EXPECT_EQ(buffered.mode_of_path(0), IoMode::Buffered);
}

TEST(NvmeStoreBackends, GivesTheSameBytesWhenIoUringIsRefused) {
  test::TempDir directory;
  Budget budget("nvme", kGiB);
  const BackendFactory without_ring = [](BackendOptions options) {
    options.uring.setup = [](unsigned, io_uring*, io_uring_params*) { return -ENOSYS; };
    return make_io_backend(options);
  };
  NvmeStore store(options_for(directory.path()), budget, without_ring);
  const std::vector<std::byte> sent = test::random_bytes(3'000'001, 1);
  EXPECT_EQ(round_trip(store, sent), sent);
}

}  // namespace
}  // namespace strata::nvme
