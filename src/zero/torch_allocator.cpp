#include "zero/torch_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/bytes.h"

namespace strata::zero {
namespace {

constexpr std::size_t kAlignment = 64;

// Those that live, the newest last, and what torch used before the first of them.
struct Installed {
  std::mutex mutex;
  std::vector<c10::Allocator*> allocators;
  c10::Allocator* before = nullptr;
};
Installed& installed() {
  static Installed all;
  return all;
}

}  // namespace

// Who pays for which address. Shared with the header of every allocation, because tensors may outlive the allocator.
class TorchAllocator::Ledger : public std::enable_shared_from_this<Ledger> {
 public:
  explicit Ledger(Budget& budget) : budget_(budget) {}

  Reservation reserve(std::size_t bytes) { return budget_.reserve(bytes, MemoryTag::Activation); }
  void add(void* data, Reservation reservation) {
    const std::lock_guard lock(mutex_);
    reservations_.emplace(data, std::move(reservation));
  }
  // The reservation of `data`; empty once closed.
  Reservation take(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = reservations_.find(data);
    if (found == reservations_.end()) return {};
    Reservation reservation = std::move(found->second);
    reservations_.erase(found);
    return reservation;
  }
  // The budget may die after this call: what still lives is no longer paid for.
  void close() {
    const std::lock_guard lock(mutex_);
    reservations_.clear();
  }

 private:
  Budget& budget_;
  std::mutex mutex_;
  std::unordered_map<void*, Reservation> reservations_;  // guarded by mutex_
};

thread_local TorchAllocator::Ledger* TorchAllocator::paying_ = nullptr;

TorchAllocator::TorchAllocator(Budget& budget) : ledger_(std::make_shared<Ledger>(budget)) {
  Installed& all = installed();
  const std::lock_guard lock(all.mutex);
  if (all.allocators.empty()) all.before = c10::GetCPUAllocator();
  all.allocators.push_back(this);
  c10::SetCPUAllocator(this);
}

TorchAllocator::~TorchAllocator() {
  Installed& all = installed();
  const std::lock_guard lock(all.mutex);
  std::erase(all.allocators, this);
  c10::SetCPUAllocator(all.allocators.empty() ? all.before : all.allocators.back());
  ledger_->close();
}

void TorchAllocator::pay_on_this_thread() {
  paying_ = ledger_.get();
}

c10::DataPtr TorchAllocator::allocate(std::size_t bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return {nullptr, nullptr, &TorchAllocator::release, cpu};
  const std::size_t rounded = align_up(bytes, kAlignment) + kAlignment;
  Ledger& ledger = paying_ != nullptr ? *paying_ : *ledger_;
  Reservation reservation = ledger.reserve(rounded);
  void* const block = std::aligned_alloc(kAlignment, rounded);
  if (block == nullptr) throw std::bad_alloc();
  // The 64 bytes before the data keep the ledger alive and tell the deleter, which is a plain function, where it is.
  static_assert(sizeof(std::shared_ptr<Ledger>) <= kAlignment);
  ::new (block) std::shared_ptr<Ledger>(ledger.shared_from_this());
  void* const data = static_cast<std::byte*>(block) + kAlignment;
  c10::DataPtr result(data, data, &TorchAllocator::release, cpu);
  ledger.add(data, std::move(reservation));
  return result;
}

void TorchAllocator::release(void* data) {
  if (data == nullptr) return;
  void* const block = static_cast<std::byte*>(data) - kAlignment;
  auto* const header = std::launder(static_cast<std::shared_ptr<Ledger>*>(block));
  const std::shared_ptr<Ledger> ledger = std::move(*header);
  header->~shared_ptr();
  // Taken out before the address can be handed out again, given back after the memory is: at no moment is memory in use
  // that nobody pays for.
  const Reservation reservation = ledger->take(data);
  std::free(block);
}

c10::DeleterFnPtr TorchAllocator::raw_deleter() const {
  return &TorchAllocator::release;
}

void TorchAllocator::copy_data(void* destination, const void* source, std::size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

}  // namespace strata::zero
