// Where each part of an update runs, chosen by what it would cost there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace strata::zero {

enum class UpdateSite : std::uint8_t {
  Host,    // on the processor, in pages
  Device,  // on the update stream: what is not at home on the device is brought there and taken back
};

// What a machine was measured to take.
struct UpdateCosts {
  double host_update = 0;    // seconds per element of an update on the processor
  double device_update = 0;  // and of one on the device whose bytes are there
  double to_device = 0;      // seconds per byte of the link in each direction
  double to_host = 0;
  // Shares of the time in which the link already carries gathers and gradients: 0 to below 1.
  double to_device_busy = 0;
  double to_host_busy = 0;
  // Shared: what the device does, copies included, takes the same cores (the host as a device).
  enum class Cores : std::uint8_t { Own, Shared } cores = Cores::Own;
};

// Bytes per element that an update moves over the link.
struct LinkBytes {
  double to_device = 0;
  double to_host = 0;
};

// What there is to choose for one group.
struct UpdateWork {
  std::vector<std::uint64_t> units;  // elements of each piece of its parameter
  LinkBytes on_host;                 // of an update there
  LinkBytes on_device;
  bool resident = false;           // the states are at home on the device
  std::optional<UpdateSite> only;  // nothing to choose
};

// Of each group and unit.
using UpdateSites = std::vector<std::vector<UpdateSite>>;

// Processor, device and both directions of the link work side by side; in the order of the updates each unit goes where
// it would end sooner. So every prefix is balanced, not only the whole: a layer's next forward waits for its own update
// alone. With units that differ in size alone the end is later than the best possible one by less than a largest unit
// takes; it is never later than with all of what may be chosen on one site. Where the cores are shared nothing
// works side by side, and each unit goes where it costs less. Equal costs: the host.
UpdateSites choose_update_sites(const UpdateCosts& costs, std::span<const UpdateWork> groups);

// When the busiest of processor, device and link has done it all. Requires: a site for every unit.
double finish_seconds(const UpdateCosts& costs, std::span<const UpdateWork> groups, const UpdateSites& sites);

// Share of the elements that are updated on the device.
double device_share(std::span<const UpdateWork> groups, const UpdateSites& sites);

}  // namespace strata::zero
