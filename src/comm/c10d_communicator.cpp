#include "comm/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "comm/c10d_channel.h"
#include "comm/c10d_device_group.h"
#include "comm/counted_communicator.h"
#include "core/error.h"

namespace strata::comm {
namespace {

class C10dCommunicator final : public CountedCommunicator {
 public:
  C10dCommunicator(C10dGroups groups, ShardMath& math, Buffer staging)
      : math_(math),
        staging_(std::move(staging)),
        devices_(groups.devices ? std::move(groups.devices) : std::make_shared<DeviceGroups>()),
        queued_(groups.queued, groups.timeout, groups.ranks, on_device(groups)),
        blocking_(std::move(groups.blocking), groups.timeout, groups.ranks) {
    STRATA_EXPECTS(staging_.bytes() >= kStagingBytes, "staging memory");
    STRATA_EXPECTS(queued_.rank() == blocking_.rank(), "groups of the same ranks");
  }

  std::size_t rank() const override { return queued_.rank(); }
  std::size_t world() const override { return queued_.world(); }

  void all_gather(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] { queued_.all_gather("all_gather", full.data, full.bytes() / world()); });
  }
  void reduce_scatter(Stream& stream, TensorSpan full) override {
    on(stream, full, [this, full] {
      queued_.exchange("reduce_scatter", full.data, full.bytes() / world(), staging_.span());
      math_.sum_rows(full, world(), rank());
    });
  }
  void all_to_all(Stream& stream, TensorSpan full) override {
    on(stream, full,
       [this, full] { queued_.exchange("all_to_all", full.data, full.bytes() / world(), staging_.span()); });
  }

  void barrier() override {
    blocking([&] { blocking_.barrier(); });
  }

  void abort(std::exception_ptr reason) override {
    queued_.abort(reason);
    blocking_.abort(reason);
    devices_->abort(reason);
  }

 private:
  std::shared_ptr<DeviceGroup> on_device(const C10dGroups& groups) const {
    if (!groups.queued->getBoundDeviceId()) return nullptr;
    const auto own = static_cast<std::size_t>(groups.queued->getRank());
    return devices_->add(groups.queued, groups.ranks.at(own), groups.timeout);
  }
  // See [Note: what a device has run].
  template <typename Fn>
  void blocking(Fn fn) {
    guarded([&] {
      devices_->require_sound();
      fn();
    });
  }
  void gather_rows(std::string_view what, std::span<std::byte> rows) override {
    blocking([&] { blocking_.all_gather(what, rows.data(), rows.size() / world()); });
  }
  void broadcast_bytes(std::span<std::byte> bytes, std::size_t root) override {
    blocking([&] { blocking_.broadcast(bytes, root); });
  }

  ShardMath& math_;
  const Buffer staging_;
  const std::shared_ptr<DeviceGroups> devices_;
  C10dChannel queued_;
  C10dChannel blocking_;
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_communicator(C10dGroups groups, ShardMath& math, Buffer staging) {
  return std::make_unique<C10dCommunicator>(std::move(groups), math, std::move(staging));
}

}  // namespace strata::comm
