// Budget and Reservation: no byte is allocated without a reservation, and what cannot fit is refused before it exists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace strata {

// What the bytes are for. Kept beside each reservation so that a refusal can say who holds the memory.
enum class MemoryTag : std::uint8_t { Param, Grad, OptimState, Gather, Activation, Staging };
inline constexpr std::size_t kMemoryTags = 6;
std::string_view name_of(MemoryTag tag);

class Budget;

// Move-only RAII share of a budget. Returns its bytes when destroyed. Must not outlive the budget.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }

  std::uint64_t bytes() const noexcept { return bytes_; }
  void release() noexcept;

 private:
  friend class Budget;
  Reservation(Budget* budget, std::uint64_t bytes, MemoryTag tag) : budget_(budget), bytes_(bytes), tag_(tag) {}
  Budget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
  MemoryTag tag_ = MemoryTag::Staging;
};

// A hard limit in bytes for one tier. Thread-safe. used() <= limit() at every moment, so peak() <= limit().
class Budget {
 public:
  Budget(std::string name, std::uint64_t limit_bytes);
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  std::optional<Reservation> try_reserve(std::uint64_t bytes, MemoryTag tag);
  // Throws: OutOfBudget naming the tier, what was asked, what is free and the largest holders.
  Reservation reserve(std::uint64_t bytes, MemoryTag tag);

  const std::string& name() const { return name_; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t used() const;
  std::uint64_t peak() const;
  std::uint64_t used(MemoryTag tag) const;
  std::uint64_t peak(MemoryTag tag) const;

 private:
  friend class Reservation;
  void release(std::uint64_t bytes, MemoryTag tag) noexcept;

  const std::string name_;
  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::uint64_t used_ = 0;                                // guarded by mutex_
  std::uint64_t peak_ = 0;                                // guarded by mutex_
  std::array<std::uint64_t, kMemoryTags> used_by_tag_{};  // guarded by mutex_
  std::array<std::uint64_t, kMemoryTags> peak_by_tag_{};  // guarded by mutex_
};

}  // namespace strata
