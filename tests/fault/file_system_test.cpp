// The NVMe store on file systems that lack something, with both backends: the same operations give the same bytes.
#include <gtest/gtest.h>

#include <random>

#include "nvme/nvme_store.h"
#include "support/patterned_bytes.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::test {
namespace {

namespace fs = std::filesystem;

enum class Lacks { Nothing, SmallSectors, Preallocation, DirectIo };

struct Tried {
  const char* name;
  Lacks lacks;
  nvme::BackendKind backend;
};

class FileSystemTest : public testing::TestWithParam<Tried> {
 protected:
  static std::optional<SmallMount> mount() {
    switch (GetParam().lacks) {
      case Lacks::Nothing:
        break;
      case Lacks::SmallSectors:
        return SmallMount::image("ext4", 64, 4096);
      case Lacks::Preallocation:
        return SmallMount::image("ext2", 64);
      case Lacks::DirectIo:
        return SmallMount::memory("ramfs", "");
    }
    return std::nullopt;
  }
};

TEST_P(FileSystemTest, KeepsEveryByteOfRandomReadsAndWrites) {
  const std::optional<SmallMount> mounted = mount();
  if (mounted && !mounted->mounted()) GTEST_SKIP() << mounted->reason();
  const TempDir directory;
  constexpr std::uint64_t kSeed = 31;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Budget budget("nvme", std::uint64_t{1} << 30);
  for (const bool checksums : {false, true}) {
    nvme::NvmeOptions options;
    options.paths = {mounted ? mounted->path() : directory.path()};
    options.block_bytes = 16 << 10;
    options.queue_depth = 6;
    options.backend = GetParam().backend;
    options.chunk_bytes = 64 << 10;
    options.checksums = checksums;
    nvme::NvmeStore store(options, budget);
    std::mt19937_64 random(kSeed);
    std::vector<std::byte> model = random_bytes(3'000'011, kSeed);
    const BlobId blob = store.create("blob", model.size());
    store.write(blob, 0, model).wait();
    for (int i = 0; i < 200; ++i) {
      const std::size_t bytes = 1 + random() % (i % 4 == 0 ? model.size() : 70'000);
      const std::size_t offset = random() % (model.size() - bytes + 1);
      const auto begin = model.begin() + static_cast<std::ptrdiff_t>(offset);
      GuardedBytes memory(bytes, random() % 2 == 0 ? 0 : random() % 4096);
      if (random() % 2 == 0) {
        const std::vector<std::byte> sent = random_bytes(bytes, random());
        std::copy(sent.begin(), sent.end(), begin);
        std::copy(sent.begin(), sent.end(), memory.span().begin());
        store.write(blob, offset, memory.span()).wait();
      } else {
        store.read(blob, offset, memory.span(), IoUrgency::Demand).wait();
        ASSERT_TRUE(std::equal(memory.span().begin(), memory.span().end(), begin)) << i;
        ASSERT_TRUE(memory.guards_intact());
      }
    }
    std::vector<std::byte> received(model.size());
    store.read(blob, 0, received, IoUrgency::Demand).wait();
    EXPECT_EQ(received, model);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FileSystemTest,
                         testing::Values(Tried{"TemporaryFolderAuto", Lacks::Nothing, nvme::BackendKind::Auto},
                                         Tried{"TemporaryFolderThreads", Lacks::Nothing, nvme::BackendKind::Threads},
                                         Tried{"Sectors4096Auto", Lacks::SmallSectors, nvme::BackendKind::Auto},
                                         Tried{"Sectors4096Threads", Lacks::SmallSectors, nvme::BackendKind::Threads},
                                         Tried{"Ext2Auto", Lacks::Preallocation, nvme::BackendKind::Auto},
                                         Tried{"Ext2Threads", Lacks::Preallocation, nvme::BackendKind::Threads},
                                         Tried{"RamfsAuto", Lacks::DirectIo, nvme::BackendKind::Auto},
                                         Tried{"RamfsThreads", Lacks::DirectIo, nvme::BackendKind::Threads}),
                         [](const testing::TestParamInfo<Tried>& tried) { return tried.param.name; });

}  // namespace
}  // namespace strata::test
