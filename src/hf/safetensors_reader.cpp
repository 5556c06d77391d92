#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "hf/file_handle.h"
#include "hf/safetensors.h"
#include "hf/safetensors_header.h"
#include "hf/strict_json.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Reads name -> file of an index. File names come from a stranger: only plain names inside the folder are followed.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const std::string where = index.string();
  const json object = parse_strict_json<json>(read_text_file(index, kMaxHeaderBytes), where);
  if (!object.is_object() || !object.contains("weight_map") || !object.at("weight_map").is_object()) {
    throw DataError(where + ": no weight_map of tensor names to files");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, value] : object.at("weight_map").items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == ".." || file.find('/') != std::string::npos) {
      throw DataError(where + ": weight_map of \"" + name + "\" is not a file name inside the folder");
    }
    weight_map[name] = file;
  }
  if (weight_map.empty()) throw DataError(where + ": the weight_map is empty");
  return weight_map;
}

// All of them at once, so that one look at the message is enough to fetch what is missing.
void refuse_absent_shards(const fs::path& folder, const std::set<std::string>& shards, const fs::path& index) {
  std::string absent;
  for (const std::string& shard : shards) {
    std::error_code ignored;
    const fs::path path = folder / shard;
    if (fs::is_regular_file(path, ignored)) continue;
    std::string why;
    if (fs::is_directory(path, ignored)) why = " (a folder)";
    if (fs::is_symlink(fs::symlink_status(path, ignored)) && !fs::exists(path, ignored)) why = " (a dangling link)";
    absent += (absent.empty() ? "" : ", ") + shard + why;
  }
  if (!absent.empty()) throw DataError(index.string() + ": names files that are not there: " + absent);
}

[[noreturn]] void refuse_folder(const fs::path& folder, const std::string& stem) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) throw DataError(folder.string() + ": no such folder");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".gguf")) {
      throw DataError(folder.string() + ": only " + name + " found; safetensors are needed (transformers converts: " +
                      "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))");
    }
  }
  throw DataError(folder.string() + ": neither " + stem + ".safetensors nor " + stem + ".safetensors.index.json there");
}

}  // namespace

void TensorCatalog::add_file(const fs::path& path) {
  auto file = std::make_shared<const FileHandle>(FileHandle::open_for_reading(path));
  SafetensorsHeader header = read_safetensors_header(*file);
  if (files_.empty()) metadata_ = std::move(header.metadata);
  files_[path] = std::move(file);
  for (TensorInfo& tensor : header.tensors) {
    const auto [place, inserted] = tensors_.try_emplace(tensor.name, tensor);
    if (!inserted) {
      throw DataError(path.string() + ": duplicate tensor \"" + tensor.name + "\", already in " +
                      place->second.file.filename().string());
    }
  }
}

TensorCatalog TensorCatalog::open_file(const fs::path& file) {
  TensorCatalog catalog;
  catalog.add_file(file);
  return catalog;
}

TensorCatalog TensorCatalog::open_folder(const fs::path& folder, std::string_view stem) {
  const std::string single = std::string(stem) + ".safetensors";
  std::error_code ignored;
  // symlink_status sees a dangling link, which must be named rather than looked past.
  if (fs::exists(fs::symlink_status(folder / single, ignored))) return open_file(folder / single);
  const fs::path index = folder / (single + ".index.json");
  if (!fs::exists(fs::symlink_status(index, ignored))) refuse_folder(folder, std::string(stem));

  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  refuse_absent_shards(folder, shards, index);
  TensorCatalog catalog;
  for (const std::string& shard : shards) catalog.add_file(folder / shard);
  for (const auto& [name, shard] : weight_map) {
    const TensorInfo* tensor = catalog.find(name);
    if (tensor == nullptr || tensor->file.filename() != shard) {
      throw DataError(index.string() + ": tensor \"" + name + "\" is not in " + shard + " as the index says");
    }
  }
  return catalog;
}

const TensorInfo* TensorCatalog::find(std::string_view name) const {
  const auto place = tensors_.find(name);
  return place == tensors_.end() ? nullptr : &place->second;
}

void TensorCatalog::read(const TensorInfo& tensor, std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  const auto file = files_.find(tensor.file);
  STRATA_EXPECTS(file != files_.end(), tensor.name + " is not of this catalog");
  STRATA_EXPECTS(offset_bytes <= tensor.bytes && destination.size() <= tensor.bytes - offset_bytes,
                 "a range outside of " + tensor.name);
  const std::uint64_t begin = tensor.offset_bytes + offset_bytes;
  const std::size_t got = file->second->read_some(begin, destination);
  if (got == destination.size()) return;
  throw DataError(tensor.file.string() + ": ended at byte " + std::to_string(begin + got) + " inside \"" + tensor.name +
                  "\", which reaches to byte " + std::to_string(tensor.offset_bytes + tensor.bytes) +
                  "; it was cut after it had been opened");
}

}  // namespace strata::hf
