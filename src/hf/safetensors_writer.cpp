#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "hf/file_handle.h"
#include "hf/safetensors.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string header_of(std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  ordered_json object = ordered_json::object();
  if (!metadata.empty()) object["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t bytes = tensor.bytes();
    object[tensor.name] = {{"dtype", name_of(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", std::array{offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = object.dump();
  // Padding with spaces keeps the data aligned for readers that map the file.
  text.resize(align_up(text.size(), 8), ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

std::string shard_name(const std::string& stem, std::size_t number, std::size_t count) {
  if (count == 1) return stem + ".safetensors";
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "-%05zu-of-%05zu", number, count);
  return stem + digits.data() + ".safetensors";
}

void require_free_space(const fs::path& folder, std::uint64_t need_bytes) {
  struct statvfs status {};
  // A file system that cannot tell is no reason to stop; the write itself will.
  if (::statvfs(folder.c_str(), &status) != 0) return;
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  if (free_bytes >= need_bytes) return;
  throw IoError({.errno_value = ENOSPC,
                 .op = "write",
                 .path = folder.string(),
                 .bytes = need_bytes,
                 .hint = format_bytes(need_bytes) + " needed, " + format_bytes(free_bytes) +
                         " free: free some space there or choose another folder"});
}

}  // namespace

std::uint64_t TensorToWrite::bytes() const {
  std::uint64_t bytes = bytes_of(dtype);
  for (const std::int64_t dimension : shape) {
    STRATA_EXPECTS(dimension >= 0, name + " has a negative dimension");
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return bytes;
}

SafetensorsPlan::SafetensorsPlan(std::span<const TensorToWrite> tensors, const WriteOptions& options)
    : tensors_(tensors.begin(), tensors.end()), options_(options), files_(1) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    STRATA_EXPECTS(names.insert(tensors_[i].name).second, "two tensors are named " + tensors_[i].name);
    // A tensor that alone exceeds the limit has a shard to itself, as in huggingface_hub's split.
    const std::uint64_t bytes = tensors_[i].bytes();
    const bool empty = files_.back().first == files_.back().last;
    if (!empty && files_.back().data_bytes + bytes > options_.max_shard_bytes) files_.emplace_back().first = i;
    begins_.push_back(files_.back().data_bytes);
    files_.back().last = i + 1;
    files_.back().data_bytes += bytes;
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    File& file = files_[i];
    file.name = shard_name(options_.stem, i + 1, files_.size());
    file.header = header_of(std::span(tensors_).subspan(file.first, file.last - file.first), options_.metadata);
  }
}

void SafetensorsPlan::create_files(const fs::path& folder) const {
  std::uint64_t need_bytes = 0;
  for (const File& file : files_) need_bytes += file.header.size() + file.data_bytes;
  require_free_space(folder, need_bytes);
  for (const File& file : files_) {
    FileHandle handle = FileHandle::create(folder / file.name);
    handle.append(std::as_bytes(std::span(file.header)));
    handle.sync_and_close();
  }
  if (files_.size() > 1) write_index(folder / (options_.stem + ".safetensors.index.json"));
  sync_folder(folder);
}

void SafetensorsPlan::write_index(const fs::path& path) const {
  ordered_json weight_map = ordered_json::object();
  std::uint64_t total_size = 0;
  for (const File& file : files_) {
    total_size += file.data_bytes;
    for (std::size_t i = file.first; i < file.last; ++i) weight_map[tensors_[i].name] = file.name;
  }
  const ordered_json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", std::move(weight_map)}};
  const std::string text = index.dump(2) + "\n";
  FileHandle handle = FileHandle::create(path);
  handle.append(std::as_bytes(std::span(text)));
  handle.sync_and_close();
}

SafetensorsWriter::SafetensorsWriter(const SafetensorsPlan& plan, fs::path folder)
    : plan_(plan), folder_(std::move(folder)) {}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::size_t i, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  if (source.empty()) return;
  STRATA_EXPECTS(i >= plan_.files_[file_].first && i < plan_.tensors_.size() &&
                     offset_bytes + source.size() <= plan_.tensors_[i].bytes(),
                 "a range of a tensor, and tensors in order");
  if (i >= plan_.files_[file_].last) {
    finish();
    while (i >= plan_.files_[file_].last) ++file_;
  }
  const SafetensorsPlan::File& file = plan_.files_[file_];
  if (!open_) open_ = std::make_unique<FileHandle>(FileHandle::open_for_writing(folder_ / file.name));
  open_->write(file.header.size() + plan_.begins_[i] + offset_bytes, source);
}

void SafetensorsWriter::finish() {
  if (open_) std::exchange(open_, nullptr)->sync_and_close();
}

std::size_t piece_bytes(std::span<const std::byte> buffer) {
  return buffer.size() >= 64 ? buffer.size() / 64 * 64 : buffer.size();
}

void write_safetensors(const fs::path& folder, std::span<const TensorToWrite> tensors, const TensorProducer& produce,
                       std::span<std::byte> buffer, const WriteOptions& options) {
  STRATA_EXPECTS(!buffer.empty(), "no buffer to write through");
  const SafetensorsPlan plan(tensors, options);
  plan.create_files(folder);
  SafetensorsWriter writer(plan, folder);
  const std::size_t piece = piece_bytes(buffer);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].bytes();
    for (std::uint64_t offset = 0; offset < bytes; offset += piece) {
      const std::span<std::byte> part = buffer.first(std::min<std::uint64_t>(piece, bytes - offset));
      produce(i, offset, part);
      writer.write(i, offset, part);
    }
  }
  writer.finish();
}

}  // namespace strata::hf
