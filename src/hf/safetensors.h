// safetensors files: untrusted input is checked whole before a byte of it is used; output loads in transformers
// unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace strata::hf {

class FileHandle;

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::filesystem::path file;
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t bytes = 0;

  std::uint64_t numel() const {
    std::uint64_t n = 1;
    for (const std::int64_t d : shape) n *= static_cast<std::uint64_t>(d);
    return n;
  }
};

// Every tensor of a folder (model.safetensors, or model.safetensors.index.json with its shards) or of one file.
// Opening reads headers only; data is read by range with pread into the caller's buffer and is never mapped. The files
// stay open as long as the catalog or a copy of it lives. Thread-safe after construction.
class TensorCatalog {
 public:
  // Throws: DataError naming the file and what is wrong: missing or extra bytes, bad header, overlap, hole, duplicate
  // name, unknown dtype, shards absent (all of them listed), a git-lfs pointer instead of weights, .bin weights only.
  // Files are `stem`.safetensors or `stem`.safetensors.index.json with its shards.
  static TensorCatalog open_folder(const std::filesystem::path& folder, std::string_view stem = "model");
  static TensorCatalog open_file(const std::filesystem::path& file);

  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  // __metadata__ of the (first) file.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads destination.size() bytes of `tensor` from `offset_bytes` (counted from the tensor's first byte).
  // Requires: a tensor of this catalog and a range inside it.
  // Throws: DataError when the file ended early (it was truncated after opening), IoError.
  void read(const TensorInfo& tensor, std::uint64_t offset_bytes, std::span<std::byte> destination) const;

 private:
  void add_file(const std::filesystem::path& path);

  std::map<std::filesystem::path, std::shared_ptr<const FileHandle>> files_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to be written; the bytes come later, in pieces.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
};

struct WriteOptions {
  std::string stem = "model";
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

using TensorProducer =
    std::function<void(std::size_t tensor, std::uint64_t offset_bytes, std::span<std::byte> destination)>;

// Writes tensors, in the order given, as `stem`.safetensors or as shards `stem`-00001-of-0000N.safetensors of at most
// `max_shard_bytes` of data with an index. Every file is fsynced; the caller renames the folder.
// `produce(i, offset_bytes, destination)` fills destination with bytes of tensor i from offset_bytes. It is called in
// order with destinations of at most `buffer.size()` bytes, which is the only memory used; offsets are multiples of 64
// when the buffer has 64 bytes or more, so no piece splits an element. Tensors of mixed dtype: give the wide ones
// first, since Python's reader needs each tensor aligned to its element. Requires: distinct names, a buffer that is not
// empty. Throws: IoError (ENOSPC is found before writing where the file system tells its free space), with needed and
// free bytes.
void write_safetensors(const std::filesystem::path& folder, std::span<const TensorToWrite> tensors,
                       const TensorProducer& produce, std::span<std::byte> buffer, const WriteOptions& options = {});

}  // namespace strata::hf
