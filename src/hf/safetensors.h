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

  std::uint64_t bytes() const;
};

struct WriteOptions {
  std::string stem = "model";
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// Which file each tensor lies in and where, before a byte is written: tensors in the order given, as `stem`.safetensors
// or as shards `stem`-00001-of-0000N.safetensors of at most `max_shard_bytes` of data with an index.
class SafetensorsPlan {
 public:
  // Tensors of mixed dtype: give the wide ones first, since Python's reader needs each tensor aligned to its element.
  // Requires: distinct names.
  SafetensorsPlan(std::span<const TensorToWrite> tensors, const WriteOptions& options = {});

  // Makes the files with their headers, and the index; durable, but for the data, which SafetensorsWriter brings.
  // Throws: IoError (ENOSPC before anything is written where the file system tells its free space), with needed and
  // free bytes.
  void create_files(const std::filesystem::path& folder) const;

 private:
  friend class SafetensorsWriter;
  struct File {
    std::size_t first = 0;  // tensors [first, last)
    std::size_t last = 0;
    std::uint64_t data_bytes = 0;
    std::string name;
    std::string header;  // length field included
  };
  void write_index(const std::filesystem::path& path) const;

  std::vector<TensorToWrite> tensors_;
  WriteOptions options_;
  std::vector<File> files_;
  std::vector<std::uint64_t> begins_;  // of each tensor, in the data of its file
};

// Brings the data into the files of a plan. Several processes may do so at the same time, each with ranges of its own,
// once one of them has made the files. One thread. The plan must outlive it.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const SafetensorsPlan& plan, std::filesystem::path folder);
  ~SafetensorsWriter();

  // Writes bytes of tensor `i` from `offset_bytes` on. Requires: no tensor before the last call's. Throws: IoError.
  void write(std::size_t i, std::uint64_t offset_bytes, std::span<const std::byte> source);
  // Makes what was written durable. Throws: IoError.
  void finish();

 private:
  const SafetensorsPlan& plan_;
  const std::filesystem::path folder_;
  std::size_t file_ = 0;
  std::unique_ptr<FileHandle> open_;  // files_[file_], once something was written to it
};

// Bytes of a piece that goes through `buffer`: a multiple of 64 where it has as many, so that no piece splits an
// element.
std::size_t piece_bytes(std::span<const std::byte> buffer);

using TensorProducer =
    std::function<void(std::size_t tensor, std::uint64_t offset_bytes, std::span<std::byte> destination)>;

// Plans, makes and fills the files; the caller renames the folder. `produce(i, offset_bytes, destination)` fills
// destination with bytes of tensor i from offset_bytes. It is called in order with destinations of at most
// piece_bytes(buffer), and the buffer is the only memory used. Requires: a buffer that is not empty. Throws: as above.
void write_safetensors(const std::filesystem::path& folder, std::span<const TensorToWrite> tensors,
                       const TensorProducer& produce, std::span<std::byte> buffer, const WriteOptions& options = {});

}  // namespace strata::hf
