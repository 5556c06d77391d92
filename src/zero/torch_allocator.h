// TorchAllocator: torch's CPU tensors pay out of a Budget, and what does not fit is refused before it exists.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

#include "core/budget.h"

namespace strata::zero {

// While it lives, CPU tensors are allocated by it: those of threads that called pay_on_this_thread(), and those of all
// other threads unless a newer allocator lives. 64-byte aligned, reserved with MemoryTag::Activation, rounded up to 64
// bytes plus a 64-byte header. used() and peak() are those of the budget's tag. Ownership: tensors may outlive the
// allocator; their reservations end with it, their memory when they are freed. Threads: tensors are allocated and freed
// from any thread; construct and destroy while no other thread allocates tensors that it pays for.
class TorchAllocator final : public c10::Allocator {
 public:
  // Installs itself as torch's CPU allocator until destroyed, in any order. Requires: `budget` outlives it.
  explicit TorchAllocator(Budget& budget);
  // Requires: the calling thread ends, or calls this of another allocator, before this one is destroyed, or it
  // allocates no tensor afterwards.
  void pay_on_this_thread();
  ~TorchAllocator() override;
  TorchAllocator(const TorchAllocator&) = delete;
  TorchAllocator& operator=(const TorchAllocator&) = delete;

  // Throws: OutOfBudget; torch passes it on to the caller of the operation, and later operations work again.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t bytes) const override;

 private:
  class Ledger;
  static thread_local Ledger* paying_;
  static void release(void* data);

  std::shared_ptr<Ledger> ledger_;
};

}  // namespace strata::zero
