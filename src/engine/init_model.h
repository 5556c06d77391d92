// A Hugging Face folder made from a config.json alone: random weights, written one piece after the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "core/dtype.h"

namespace strata::engine {

struct InitOptions {
  std::uint64_t seed = 42;
  DType dtype = DType::BF16;  // or F32
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // Between pieces, with the bytes written so far and those of all weights. What it throws ends the writing.
  std::function<void(std::uint64_t done, std::uint64_t all)> on_progress = {};
};

struct InitSummary {
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;  // of the weights
};

// Writes `folder`: the file `config` with the type set, and weights as random_weights() draws them, so that an engine
// that reads them in fp32 holds the bits of one with EngineConfig::random_weights and the same seed. No tokenizer.
// Takes a buffer of some MiB whatever the model's size. Written under a temporary name and renamed; nothing stays on
// failure. Throws: ConfigError when the folder exists and holds something, DataError for the config, OutOfBudget when
// the disk has too little room, IoError.
InitSummary init_model(const std::filesystem::path& config, const std::filesystem::path& folder,
                       const InitOptions& options = {});

}  // namespace strata::engine
