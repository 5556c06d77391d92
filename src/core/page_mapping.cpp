#include "core/page_mapping.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "core/memory_nodes.h"

namespace strata {
namespace {

// Null with errno where the kernel refuses, or would map elsewhere than at `wanted` (null: anywhere).
std::byte* try_map(std::byte* wanted, std::size_t bytes, int flags) {
  // NOREPLACE, not FIXED: another thread may have mapped something there since this one looked.
  if (wanted != nullptr) flags |= MAP_FIXED_NOREPLACE;
  void* const data = mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (wanted != nullptr && data != wanted) {  // kernels before 4.17 take the address as a hint
    unmap_pages(static_cast<std::byte*>(data), bytes);
    errno = EEXIST;
    return nullptr;
  }
  return static_cast<std::byte*>(data);
}

// As try_map(null, ...), at a multiple of kHugePageBytes: maps more and gives the ends back.
std::byte* try_map_aligned(std::size_t bytes) {
  const std::size_t more = kHugePageBytes - kPageBytes;
  if (bytes > std::numeric_limits<std::size_t>::max() - more) {
    errno = ENOMEM;
    return nullptr;
  }
  std::byte* const range = try_map(nullptr, bytes + more, 0);
  if (range == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(range);
  const std::size_t head = align_up(address, kHugePageBytes) - address;
  if (head > 0) unmap_pages(range, head);
  if (more > head) unmap_pages(range + head + bytes, more - head);
  return range + head;
}

// Takes the pages now and says whether that worked. Without this a page that the reserve cannot give after all (a limit
// of the control group, a page gone bad) is a SIGBUS at its first touch. Kernels before 5.14 know no such advice, and
// then the answer is no.
bool populate(std::byte* data, std::size_t bytes) {
  while (madvise(data, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

// All whole huge pages of the region from the reserve and the rest on small pages. Null: nothing was taken.
std::byte* try_map_reserved(std::size_t bytes) {
  const std::size_t huge = bytes / kHugePageBytes * kHugePageBytes;
  // Left to itself the kernel would put the huge part where no room for the rest follows.
  std::byte* const data = try_map_aligned(bytes);
  if (data == nullptr) return nullptr;
  unmap_pages(data, bytes);
  if (try_map(data, huge, MAP_HUGETLB | MAP_HUGE_2MB) == nullptr) return nullptr;
  if (huge < bytes && try_map(data + huge, bytes - huge, 0) == nullptr) {
    unmap_pages(data, huge);
    return nullptr;
  }
  machine_nodes().spread({data, bytes});
  if (populate(data, huge)) return data;
  unmap_pages(data, bytes);
  return nullptr;
}

}  // namespace

std::byte* map_pages(std::size_t bytes) {
  const bool large = bytes >= kHugePageBytes;
  if (large) {
    if (std::byte* const data = try_map_reserved(bytes)) return data;
  }
  std::byte* const data = large ? try_map_aligned(bytes) : try_map(nullptr, bytes, 0);
  if (data == nullptr) {
    throw IoError({.errno_value = errno,
                   .op = "mmap",
                   .path = "anonymous memory",
                   .offset_bytes = 0,
                   .bytes = bytes,
                   .hint = "The budget is larger than what the kernel grants: lower it, or raise RLIMIT_AS."});
  }
  if (!large) return data;
  machine_nodes().spread({data, bytes});
  // Advice only: a kernel without transparent huge pages answers EINVAL and the mapping works with small ones.
  if (madvise(data, bytes, MADV_HUGEPAGE) != 0) {
    log::debug("no huge pages for " + format_bytes(bytes) + " of host memory (errno " + std::to_string(errno) + ")");
  }
  return data;
}

void unmap_pages(std::byte* data, std::size_t bytes) noexcept {
  if (munmap(data, bytes) != 0) {
    log::error("munmap of " + format_bytes(bytes) + " failed (errno " + std::to_string(errno) + "): memory leaks");
  }
}

}  // namespace strata
