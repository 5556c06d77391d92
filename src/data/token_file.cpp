// The bytes are specified in docs/token-file.md; tools/token_file.py writes them.
#include "data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace strata::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is read in place");

constexpr std::string_view kMagic = "STRATOK1";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kChecksumBytes = 8;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t max_token;
  std::uint64_t samples;
  std::uint64_t tokens;
  std::uint64_t trained_tokens;
  std::uint64_t reserved[3];
};
static_assert(sizeof(Header) == 64);

// Owns a read-only mapping of a whole file.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path);
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Closes the descriptor; the mapping outlives it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Mapping::Mapping(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) throw DataError(name + ": no such file");
  if (file.get() < 0) throw IoError({.errno_value = errno, .op = "open", .path = name, .hint = ""});
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw IoError({.errno_value = errno, .op = "stat", .path = name, .hint = ""});
  if (!S_ISREG(status.st_mode)) throw DataError(name + ": not a regular file");
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (bytes_ < sizeof(Header) + kChecksumBytes) {
    throw DataError(name + ": " + std::to_string(bytes_) + " bytes are too few for a token file; make it with " +
                    "tools/prepare_data.py");
  }
  void* const data = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    throw IoError({.errno_value = errno,
                   .op = "mmap",
                   .path = name,
                   .bytes = bytes_,
                   .hint = "put the file on a local file system that can be mapped"});
  }
  data_ = data;
}

}  // namespace

struct TokenFile::Impl {
  Mapping mapping;
  Header header{};
  const std::uint64_t* offsets = nullptr;  // [samples + 1], in tokens
  const std::uint32_t* tokens = nullptr;   // [tokens]
  const std::uint8_t* trained = nullptr;   // [tokens]

  explicit Impl(const std::filesystem::path& path) : mapping(path) {
    const std::string name = path.string();
    read_header(name);
    check_checksum(name);
    check_offsets(name);
    check_contents(name);
  }

  void read_header(const std::string& name);
  void check_checksum(const std::string& name) const;
  void check_offsets(const std::string& name) const;
  void check_contents(const std::string& name) const;
};

void TokenFile::Impl::read_header(const std::string& name) {
  std::memcpy(&header, mapping.data(), sizeof header);
  if (std::string_view(header.magic, sizeof header.magic) != kMagic) {
    throw DataError(name + ": not a token file; make one from text with tools/prepare_data.py");
  }
  if (header.version != kVersion) {
    throw DataError(name + ": version " + std::to_string(header.version) + " of the format, this program reads " +
                    std::to_string(kVersion) + "; make it again with tools/prepare_data.py");
  }
  if (header.samples == 0) throw DataError(name + ": no samples");
  // Counts so large that these sums wrap exceed the bytes of the file and are refused for that.
  const std::uint64_t most = mapping.bytes();
  const std::uint64_t offset_bytes = (header.samples + 1) * sizeof(std::uint64_t);
  const std::uint64_t expected =
      sizeof(Header) + offset_bytes + header.tokens * (sizeof(std::uint32_t) + sizeof(std::uint8_t)) + kChecksumBytes;
  if (header.samples > most || header.tokens > most || expected != most) {
    throw DataError(name + ": truncated or overlong, " + std::to_string(most) + " bytes do not hold " +
                    std::to_string(header.samples) + " samples of " + std::to_string(header.tokens) + " tokens");
  }
  const std::byte* const data = mapping.data();
  offsets = reinterpret_cast<const std::uint64_t*>(data + sizeof(Header));
  tokens = reinterpret_cast<const std::uint32_t*>(data + sizeof(Header) + offset_bytes);
  trained = reinterpret_cast<const std::uint8_t*>(tokens + header.tokens);
}

void TokenFile::Impl::check_checksum(const std::string& name) const {
  const std::uint64_t covered = mapping.bytes() - kChecksumBytes;
  std::uint64_t stored = 0;
  std::memcpy(&stored, mapping.data() + covered, sizeof stored);
  if (XXH3_64bits(mapping.data(), covered) != stored) {
    throw CorruptionError(name + ": the checksum does not match; make the file again with tools/prepare_data.py");
  }
}

void TokenFile::Impl::check_offsets(const std::string& name) const {
  if (offsets[0] != 0 || offsets[header.samples] != header.tokens) {
    throw DataError(name + ": the samples do not cover the tokens");
  }
  for (std::uint64_t i = 0; i < header.samples; ++i) {
    if (offsets[i] >= offsets[i + 1] || offsets[i + 1] > header.tokens) {
      throw DataError(name + ": sample " + std::to_string(i) + " is empty or out of bounds");
    }
  }
}

void TokenFile::Impl::check_contents(const std::string& name) const {
  const std::uint32_t* const largest = std::max_element(tokens, tokens + header.tokens);
  if (*largest != header.max_token) throw DataError(name + ": the largest token is not the one the header names");
  std::uint64_t trained_tokens = 0;
  for (std::uint64_t i = 0; i < header.tokens; ++i) {
    if (trained[i] > 1) throw DataError(name + ": the mask of token " + std::to_string(i) + " is neither 0 nor 1");
    trained_tokens += trained[i];
  }
  if (trained_tokens != header.trained_tokens)
    throw DataError(name + ": the mask does not add up to the header's count");
  for (std::uint64_t i = 0; i < header.samples; ++i) {
    // Nothing precedes a first token, so it cannot be a target and must not be counted as one.
    if (trained[offsets[i]] != 0) {
      throw DataError(name + ": the first token of sample " + std::to_string(i) + " is marked as trained");
    }
  }
}

TokenFile TokenFile::open(const std::filesystem::path& path) {
  return TokenFile(std::make_unique<Impl>(path));
}

TokenFile::TokenFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;
TokenFile::~TokenFile() = default;

std::size_t TokenFile::samples() const {
  return impl_->header.samples;
}
std::uint64_t TokenFile::tokens() const {
  return impl_->header.tokens;
}
std::uint64_t TokenFile::trained_tokens() const {
  return impl_->header.trained_tokens;
}
std::uint32_t TokenFile::max_token() const {
  return impl_->header.max_token;
}

Sample TokenFile::sample(std::size_t index) const {
  STRATA_EXPECTS(index < samples(), "sample " + std::to_string(index) + " of " + std::to_string(samples()));
  const std::uint64_t first = impl_->offsets[index];
  const std::size_t length = impl_->offsets[index + 1] - first;
  return {{impl_->tokens + first, length}, {impl_->trained + first, length}};
}

}  // namespace strata::data
