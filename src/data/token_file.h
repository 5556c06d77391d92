// The token file: tokenized samples with a label mask, made by tools/prepare_data.py. Format: docs/token-file.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace strata::data {

// One sample. `trained[i]` is 1 where token i is a target of the loss (it is predicted from tokens before it).
struct Sample {
  std::span<const std::uint32_t> tokens;
  std::span<const std::uint8_t> trained;
};

// Memory-mapped and read-only; every offset is checked at opening. Thread-safe after construction.
class TokenFile {
 public:
  // Throws: DataError for a missing, truncated or foreign file, an offset out of bounds, or zero samples.
  static TokenFile open(const std::filesystem::path& path);
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  std::size_t samples() const;
  Sample sample(std::size_t index) const;
  std::uint64_t tokens() const;          // in all samples
  std::uint64_t trained_tokens() const;  // targets in all samples
  std::uint32_t max_token() const;       // largest id in the file

 private:
  struct Impl;
  explicit TokenFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::data
