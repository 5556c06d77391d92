// A file descriptor with an owner, and reads and writes that finish what the kernel cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace strata::hf {

// Owns one descriptor. Move-only. read_some is thread-safe; writing is for one thread.
class FileHandle {
 public:
  // Throws: DataError when the file does not exist, is a dangling link or is not a regular file; IoError otherwise.
  static FileHandle open_for_reading(const std::filesystem::path& path);
  // Creates or truncates. Throws: IoError.
  static FileHandle create(const std::filesystem::path& path);
  // An existing file, which keeps its bytes. Throws: IoError.
  static FileHandle open_for_writing(const std::filesystem::path& path);

  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();

  const std::filesystem::path& path() const { return path_; }
  // Size in bytes now. Throws: IoError.
  std::uint64_t size() const;
  // Fills as much of `destination` as the file holds from `offset_bytes`; a smaller result means the file ended.
  std::size_t read_some(std::uint64_t offset_bytes, std::span<std::byte> destination) const;
  // Writes all of `source` from `offset_bytes` on. Throws: IoError with what was wanted and a hint for a full disk.
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source);
  // Behind what was appended before.
  void append(std::span<const std::byte> source);
  // Makes the bytes durable and closes. Throws: IoError.
  void sync_and_close();

 private:
  FileHandle(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::filesystem::path path_;
  std::uint64_t appended_bytes_ = 0;
};

// The whole of a small text file. Throws: DataError when absent or larger than `max_bytes`; IoError.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);
// Makes the entries of a folder durable. Throws: IoError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace strata::hf
