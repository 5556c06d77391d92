#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "hf/file_handle.h"
#include "hf/safetensors.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Shard {
  std::size_t first = 0;  // tensors [first, last)
  std::size_t last = 0;
  std::uint64_t data_bytes = 0;
  std::string file_name;
  std::string header;  // length field included
};

std::uint64_t bytes_of_tensor(const TensorToWrite& tensor) {
  std::uint64_t bytes = bytes_of(tensor.dtype);
  for (const std::int64_t dimension : tensor.shape) {
    STRATA_EXPECTS(dimension >= 0, tensor.name + " has a negative dimension");
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return bytes;
}

// In order; a tensor that alone exceeds the limit has a shard to itself, as in huggingface_hub's split.
std::vector<Shard> split(std::span<const TensorToWrite> tensors, std::uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of_tensor(tensors[i]);
    const bool empty = shards.back().first == shards.back().last;
    if (!empty && shards.back().data_bytes + bytes > max_shard_bytes) {
      shards.emplace_back().first = i;
    }
    shards.back().last = i + 1;
    shards.back().data_bytes += bytes;
  }
  return shards;
}

std::string header_of(std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  ordered_json object = ordered_json::object();
  if (!metadata.empty()) object["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t bytes = bytes_of_tensor(tensor);
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

void write_shard(const fs::path& folder, const Shard& shard, std::span<const TensorToWrite> tensors,
                 const TensorProducer& produce, std::span<std::byte> buffer) {
  // Whole elements in every piece, so that a producer may convert as it goes.
  const std::size_t piece = buffer.size() >= 64 ? buffer.size() / 64 * 64 : buffer.size();
  FileHandle file = FileHandle::create(folder / shard.file_name);
  file.append(std::as_bytes(std::span(shard.header)));
  for (std::size_t i = shard.first; i < shard.last; ++i) {
    const std::uint64_t bytes = bytes_of_tensor(tensors[i]);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece) {
      const std::span<std::byte> part = buffer.first(std::min<std::uint64_t>(piece, bytes - offset));
      produce(i, offset, part);
      file.append(part);
    }
  }
  file.sync_and_close();
}

void write_index(const fs::path& path, std::span<const TensorToWrite> tensors, const std::vector<Shard>& shards) {
  ordered_json weight_map = ordered_json::object();
  std::uint64_t total_size = 0;
  for (const Shard& shard : shards) {
    total_size += shard.data_bytes;
    for (std::size_t i = shard.first; i < shard.last; ++i) weight_map[tensors[i].name] = shard.file_name;
  }
  const ordered_json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", std::move(weight_map)}};
  const std::string text = index.dump(2) + "\n";
  FileHandle file = FileHandle::create(path);
  file.append(std::as_bytes(std::span(text)));
  file.sync_and_close();
}

}  // namespace

void write_safetensors(const fs::path& folder, std::span<const TensorToWrite> tensors, const TensorProducer& produce,
                       std::span<std::byte> buffer, const WriteOptions& options) {
  STRATA_EXPECTS(!buffer.empty(), "no buffer to write through");
  std::set<std::string> names;
  for (const TensorToWrite& tensor : tensors) {
    STRATA_EXPECTS(names.insert(tensor.name).second, "two tensors are named " + tensor.name);
  }
  std::vector<Shard> shards = split(tensors, options.max_shard_bytes);
  std::uint64_t need_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file_name = shard_name(options.stem, i + 1, shards.size());
    shards[i].header = header_of(tensors.subspan(shards[i].first, shards[i].last - shards[i].first), options.metadata);
    need_bytes += shards[i].header.size() + shards[i].data_bytes;
  }
  require_free_space(folder, need_bytes);
  for (const Shard& shard : shards) write_shard(folder, shard, tensors, produce, buffer);
  if (shards.size() > 1) write_index(folder / (options.stem + ".safetensors.index.json"), tensors, shards);
  sync_folder(folder);
}

}  // namespace strata::hf
