// A plug-in as src/comm/nccl_plugin.h says, whose groups are the fake's.
#include "comm/nccl_plugin.h"

#include <atomic>

#include "comm/fake_nccl.h"

using strata::test::FakeNccl;

namespace {

FakeNccl& fake() {
  static FakeNccl& nccl = *new FakeNccl;  // never destroyed: neither are groups that a test leaves behind
  return nccl;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) FakeNccl* strata_fake_nccl() {
  return &fake();
}

// Ranks of one store are a group.
c10d::Backend* strata_make_nccl_backend(c10d::Store* store, int rank, int world, int /*device*/,
                                        std::int64_t timeout_ms, char* /*error*/, std::size_t /*error_bytes*/) {
  static std::atomic<int> groups = 0;
  const std::string mine = std::to_string(groups++);
  const std::string chosen = store->compareSet("group", std::string(), mine);
  return c10::make_intrusive<strata::test::FakeNcclBackend>(fake(), chosen, rank, world,
                                                            std::chrono::milliseconds(timeout_ms))
      .release();
}
