// What a drive does while nothing else runs: the bound that benches compare with.
#pragma once

#include <filesystem>

#include "engine/ideal.h"

namespace strata::bench {

// Medians of some seconds of measuring through the queue that the store uses, with the settings of the drive's profile.
// Needs 512 MiB of free disk for that time. Throws: ConfigError, OutOfBudget, IoError.
engine::DriveRates measure_drive_rates(const std::filesystem::path& dir);

}  // namespace strata::bench
