#include "zero/device_slots.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::zero {
namespace {

// Most groups with a size in (above, upto] that any window of visits names.
std::size_t most_at_once(std::span<const std::uint64_t> group_bytes, std::span<const std::vector<std::size_t>> visits,
                         std::size_t window, std::uint64_t above, std::uint64_t upto) {
  std::size_t most = 0;
  for (std::size_t first = 0; first < visits.size(); ++first) {
    std::set<std::size_t> named;
    for (std::size_t v = first; v < std::min(first + window, visits.size()); ++v) {
      for (const std::size_t group : visits[v]) {
        if (group_bytes[group] > above && group_bytes[group] <= upto) named.insert(group);
      }
    }
    most = std::max(most, named.size());
  }
  return most;
}

}  // namespace

std::vector<SlotClass> plan_slot_classes(std::span<const std::uint64_t> group_bytes,
                                         std::span<const std::vector<std::size_t>> visits, std::size_t window) {
  const std::set<std::uint64_t> distinct(group_bytes.begin(), group_bytes.end());
  const std::vector<std::uint64_t> sizes(distinct.begin(), distinct.end());
  const auto class_of = [&](std::size_t begin, std::size_t end) {
    const std::uint64_t above = begin == 0 ? 0 : sizes[begin - 1];
    return SlotClass{sizes[end - 1], most_at_once(group_bytes, visits, window, above, sizes[end - 1])};
  };
  // Each class takes a run of consecutive sizes. cheapest[n]: fewest bytes for the n smallest sizes; begin_of[n]: where
  // the last class of that choice begins. Merging greedily misses cuts that pay only together with a later size.
  std::vector<std::uint64_t> cheapest(sizes.size() + 1, std::numeric_limits<std::uint64_t>::max());
  std::vector<std::size_t> begin_of(sizes.size() + 1, 0);
  cheapest[0] = 0;
  for (std::size_t end = 1; end <= sizes.size(); ++end) {
    for (std::size_t begin = 0; begin < end; ++begin) {
      const SlotClass last = class_of(begin, end);
      const std::uint64_t bytes = cheapest[begin] + last.bytes * last.count;
      if (bytes >= cheapest[end]) continue;
      cheapest[end] = bytes;
      begin_of[end] = begin;
    }
  }
  std::vector<SlotClass> classes;
  for (std::size_t end = sizes.size(); end > 0; end = begin_of[end]) classes.push_back(class_of(begin_of[end], end));
  std::reverse(classes.begin(), classes.end());
  std::erase_if(classes, [](const SlotClass& c) { return c.count == 0; });
  return classes;
}

std::uint64_t total_bytes(std::span<const SlotClass> classes) {
  std::uint64_t total = 0;
  for (const SlotClass& c : classes) total += align_up(c.bytes, kPageBytes) * c.count;
  return total;
}

DeviceSlots::DeviceSlots(Device& device, MemoryTag tag, std::span<const SlotClass> classes) {
  for (const SlotClass& c : classes) {
    Class& added = classes_.emplace_back();
    added.bytes = c.bytes;
    for (std::size_t i = 0; i < c.count; ++i) {
      buffers_.push_back(device.allocate(c.bytes, tag));
      added.free.push_back({buffers_.back().data(), Event()});
    }
  }
  std::sort(classes_.begin(), classes_.end(), [](const Class& a, const Class& b) { return a.bytes < b.bytes; });
}

DeviceSlots::Lease DeviceSlots::acquire(std::uint64_t bytes) {
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    if (c.bytes < bytes || c.free.empty()) continue;
    Lease lease{c.free.front().data, c.free.front().free, i};
    c.free.pop_front();
    return lease;
  }
  contract_violation("a slot is free", "the plan provided too few device slots of " + format_bytes(bytes), __FILE__,
                     __LINE__);
}

void DeviceSlots::release(const Lease& lease, Event last_use) {
  classes_[lease.slot_class].free.push_back({lease.data, std::move(last_use)});
}

}  // namespace strata::zero
