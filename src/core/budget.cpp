#include "core/budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

namespace strata {
namespace {

// "Param 1.00 GiB, Gather 20.00 MiB": the holders, largest first.
std::string list_holders(const std::array<std::uint64_t, kMemoryTags>& used_by_tag) {
  std::vector<std::size_t> tags;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    if (used_by_tag[tag] != 0) tags.push_back(tag);
  }
  std::stable_sort(tags.begin(), tags.end(),
                   [&](std::size_t a, std::size_t b) { return used_by_tag[a] > used_by_tag[b]; });
  std::string text;
  for (const std::size_t tag : tags) {
    if (!text.empty()) text += ", ";
    text += std::string(name_of(static_cast<MemoryTag>(tag))) + " " + format_bytes(used_by_tag[tag]);
  }
  return text.empty() ? "nobody" : text;
}

}  // namespace

std::string_view name_of(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::Param:
      return "Param";
    case MemoryTag::Grad:
      return "Grad";
    case MemoryTag::OptimState:
      return "OptimState";
    case MemoryTag::Gather:
      return "Gather";
    case MemoryTag::Activation:
      return "Activation";
    case MemoryTag::Staging:
      return "Staging";
  }
  return "unknown";
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  release();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  tag_ = other.tag_;
  return *this;
}

void Reservation::release() noexcept {
  if (budget_ != nullptr) budget_->release(bytes_, tag_);
  budget_ = nullptr;
  bytes_ = 0;
}

Budget::Budget(std::string name, std::uint64_t limit_bytes) : name_(std::move(name)), limit_(limit_bytes) {}

std::optional<Reservation> Budget::try_reserve(std::uint64_t bytes, MemoryTag tag) {
  const auto index = static_cast<std::size_t>(tag);
  const std::lock_guard lock(mutex_);
  // A difference, not a sum: used_ + bytes could wrap around.
  if (bytes > limit_ - used_) return std::nullopt;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  used_by_tag_[index] += bytes;
  peak_by_tag_[index] = std::max(peak_by_tag_[index], used_by_tag_[index]);
  return Reservation(this, bytes, tag);
}

Reservation Budget::reserve(std::uint64_t bytes, MemoryTag tag) {
  if (auto reservation = try_reserve(bytes, tag)) return std::move(*reservation);
  const std::lock_guard lock(mutex_);
  const std::uint64_t free_bytes = limit_ - used_;
  throw OutOfBudget(name_ + ": " + format_bytes(bytes) + " for " + std::string(name_of(tag)) +
                        " do not fit: " + format_bytes(used_) + " of " + format_bytes(limit_) + " used, " +
                        format_bytes(free_bytes) + " free. Held by " + list_holders(used_by_tag_) +
                        ". Raise the budget of this tier or ask for less.",
                    bytes, free_bytes);
}

std::uint64_t Budget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::uint64_t Budget::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::uint64_t Budget::used(MemoryTag tag) const {
  const std::lock_guard lock(mutex_);
  return used_by_tag_[static_cast<std::size_t>(tag)];
}

std::uint64_t Budget::peak(MemoryTag tag) const {
  const std::lock_guard lock(mutex_);
  return peak_by_tag_[static_cast<std::size_t>(tag)];
}

void Budget::release(std::uint64_t bytes, MemoryTag tag) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  used_by_tag_[static_cast<std::size_t>(tag)] -= bytes;
}

}  // namespace strata
