// NvmeStore against the contract of BlobStore: every mode, backend and an extreme queue depth.
#include "contract/blob_store_contract.h"
#include "nvme/nvme_store.h"
#include "support/temp_dir.h"

namespace strata::test {
namespace {

class StoreFixture {
 public:
  explicit StoreFixture(nvme::NvmeOptions options, std::size_t paths = 1) {
    for (std::size_t i = 0; i < paths; ++i) options.paths.push_back(directories_.emplace_back().path());
    store_.emplace(options, budget_);
  }
  BlobStore& store() { return *store_; }

 private:
  std::deque<TempDir> directories_;
  Budget budget_{"nvme", std::uint64_t{1} << 30};
  std::optional<nvme::NvmeStore> store_;
};

struct Automatic : StoreFixture {
  Automatic() : StoreFixture(nvme::NvmeOptions{}) {}
};
struct UringDirect : StoreFixture {
  UringDirect() : StoreFixture({.block_bytes = 64 << 10, .queue_depth = 8, .backend = nvme::BackendKind::Uring}) {}
};
struct UringBuffered : StoreFixture {
  UringBuffered() : StoreFixture({.backend = nvme::BackendKind::Uring, .mode = nvme::IoMode::Buffered}) {}
};
struct UringDepthOne : StoreFixture {
  UringDepthOne() : StoreFixture({.block_bytes = 4096, .queue_depth = 1, .backend = nvme::BackendKind::Uring}) {}
};
struct UringDepthTwo : StoreFixture {
  UringDepthTwo() : StoreFixture({.block_bytes = 8192, .queue_depth = 2, .backend = nvme::BackendKind::Uring}) {}
};
struct ThreadsDirect : StoreFixture {
  ThreadsDirect() : StoreFixture({.block_bytes = 64 << 10, .backend = nvme::BackendKind::Threads}) {}
};
struct ThreadsBuffered : StoreFixture {
  ThreadsBuffered() : StoreFixture({.backend = nvme::BackendKind::Threads, .mode = nvme::IoMode::Buffered}) {}
};
struct ThreePaths : StoreFixture {
  ThreePaths() : StoreFixture({.queue_depth = 4}, 3) {}
};
struct Checksums : StoreFixture {
  Checksums() : StoreFixture({.chunk_bytes = 64 << 10, .checksums = true}) {}
};
struct ThreePathsSmallChunks : StoreFixture {
  ThreePathsSmallChunks() : StoreFixture({.block_bytes = 4096, .chunk_bytes = 4096, .checksums = true}, 3) {}
};
struct TwoPathsBuffered : StoreFixture {
  TwoPathsBuffered()
      : StoreFixture({.backend = nvme::BackendKind::Threads, .mode = nvme::IoMode::Buffered, .chunk_bytes = 12 << 10},
                     2) {}
};

INSTANTIATE_TYPED_TEST_SUITE_P(NvmeAutomatic, BlobStoreContract, Automatic);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeUringDirect, BlobStoreContract, UringDirect);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeUringBuffered, BlobStoreContract, UringBuffered);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeUringDepthOne, BlobStoreContract, UringDepthOne);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeUringDepthTwo, BlobStoreContract, UringDepthTwo);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeThreadsDirect, BlobStoreContract, ThreadsDirect);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeThreadsBuffered, BlobStoreContract, ThreadsBuffered);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeThreePaths, BlobStoreContract, ThreePaths);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeChecksums, BlobStoreContract, Checksums);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeThreePathsSmallChunks, BlobStoreContract, ThreePathsSmallChunks);
INSTANTIATE_TYPED_TEST_SUITE_P(NvmeTwoPathsBuffered, BlobStoreContract, TwoPathsBuffered);

}  // namespace
}  // namespace strata::test
