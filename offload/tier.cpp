#include "offload/tier.h"

#include "core/error.h"
#include "core/page_mapping.h"

namespace strata::offload {

std::string_view name_of(TierKind kind) {
  switch (kind) {
    case TierKind::Device:
      return "device";
    case TierKind::Host:
      return "host";
    case TierKind::Nvme:
      return "nvme";
  }
  return "?";
}

Home HostTier::create(const std::string&, std::uint64_t bytes, MemoryTag tag) {
  homes_.push_back(allocate_host(budget_, bytes, tag));
  if (prepare_ && bytes > 0) prepare_({homes_.back().data(), whole_pages(bytes)}, tag);
  return {static_cast<std::uint32_t>(homes_.size() - 1)};
}

Event HostTier::read(Home, std::uint64_t, std::span<std::byte>, IoUrgency) {
  contract_violation("host_address() is null", "host homes are used in place", __FILE__, __LINE__);
}

Event HostTier::write(Home, std::uint64_t, std::span<const std::byte>) {
  contract_violation("host_address() is null", "host homes are used in place", __FILE__, __LINE__);
}

DeviceTier::DeviceTier(Device& device)
    : device_(device),
      to_host_(device.create_stream("tier-to-host")),
      to_device_(device.create_stream("tier-to-device")) {}

Home DeviceTier::create(const std::string&, std::uint64_t bytes, MemoryTag tag) {
  homes_.push_back(device_.allocate(bytes, tag));
  return {static_cast<std::uint32_t>(homes_.size() - 1)};
}

Event DeviceTier::read(Home home, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency) {
  const std::lock_guard lock(mutex_);
  to_host_->copy(destination.data(), homes_.at(home.index).data() + offset_bytes, destination.size());
  stats_.bytes_read += destination.size();
  return to_host_->record();
}

Event DeviceTier::write(Home home, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  const std::lock_guard lock(mutex_);
  to_device_->copy(homes_.at(home.index).data() + offset_bytes, source.data(), source.size());
  stats_.bytes_written += source.size();
  return to_device_->record();
}

LinkStats DeviceTier::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Home BlobTier::create(const std::string& name, std::uint64_t bytes, MemoryTag) {
  return {store_.create(name, bytes).index};
}

Event BlobTier::read(Home home, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) {
  return store_.read({home.index}, offset_bytes, destination, urgency);
}

Event BlobTier::write(Home home, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  return store_.write({home.index}, offset_bytes, source);
}

LinkStats BlobTier::stats() const {
  const BlobStoreStats stats = store_.stats();
  return {stats.bytes_read, stats.bytes_written};
}

}  // namespace strata::offload
