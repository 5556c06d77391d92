// Token files made of bytes, right ones and wrong ones.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data/token_file.h"

namespace strata::test {

struct SampleBytes {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint8_t> trained;
};

// The fields of docs/token-file.md; a test changes one to make a wrong file.
struct TokenFileFields {
  std::string magic = "STRATOK1";
  std::uint32_t version = 1;
  std::uint32_t max_token = 0;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t trained_tokens = 0;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint32_t> ids;
  std::vector<std::uint8_t> mask;

  explicit TokenFileFields(const std::vector<SampleBytes>& from) {
    offsets.push_back(0);
    for (const SampleBytes& sample : from) {
      for (const std::uint32_t id : sample.tokens) {
        ids.push_back(id);
        if (id > max_token) max_token = id;
      }
      for (const std::uint8_t trained : sample.trained) {
        mask.push_back(trained);
        trained_tokens += trained;
      }
      offsets.push_back(ids.size());
    }
    samples = from.size();
    tokens = ids.size();
  }

  std::string bytes() const {
    std::string out = magic;
    append(out, version);
    append(out, max_token);
    append(out, samples);
    append(out, tokens);
    append(out, trained_tokens);
    out.append(24, '\0');
    for (const std::uint64_t offset : offsets) append(out, offset);
    for (const std::uint32_t id : ids) append(out, id);
    for (const std::uint8_t trained : mask) append(out, trained);
    append(out, static_cast<std::uint64_t>(XXH3_64bits(out.data(), out.size())));
    return out;
  }

 private:
  template <typename T>
  static void append(std::string& out, T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
  }
};

// A file that goes away with the test.
class TemporaryTokenFile {
 public:
  explicit TemporaryTokenFile(const std::string& bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "strata-tok-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd < 0) throw std::runtime_error("mkstemp " + name);
    ::close(fd);
    path_ = name;
    std::ofstream stream(path_, std::ios::binary);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!stream.flush()) throw std::runtime_error("write " + name);
  }
  explicit TemporaryTokenFile(const std::vector<SampleBytes>& samples)
      : TemporaryTokenFile(TokenFileFields(samples).bytes()) {}
  TemporaryTokenFile(const TemporaryTokenFile&) = delete;
  TemporaryTokenFile& operator=(const TemporaryTokenFile&) = delete;
  ~TemporaryTokenFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace strata::test
