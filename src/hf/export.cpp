#include "hf/export.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "hf/file_handle.h"
#include "hf/strict_json.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;
using namespace literals;
using nlohmann::ordered_json;

constexpr std::size_t kCopyBytes = 1_MiB;
constexpr std::uint64_t kMaxConfigBytes = 16'000'000;

// Names are compared in lower case: license, LICENSE.txt and License.md all occur.
constexpr std::array kPrefixes = {"tokenizer",     "special_tokens_map",
                                  "added_tokens",  "generation_config",
                                  "chat_template", "vocab",
                                  "merges",        "license",
                                  "notice",        "readme",
                                  "use_policy"};
constexpr std::array kSuffixes = {".model", ".tiktoken", ".jinja"};
constexpr std::array kWeightSuffixes = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"};
// transformers 5 keeps named templates here, one file each.
constexpr const char* kTemplateFolder = "additional_chat_templates";

bool belongs_to_users(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto begins = [&](const char* prefix) { return name.starts_with(prefix); };
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  if (std::any_of(kWeightSuffixes.begin(), kWeightSuffixes.end(), ends)) return false;
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), begins) ||
         std::any_of(kSuffixes.begin(), kSuffixes.end(), ends);
}

void copy_durably(const fs::path& from, const fs::path& to) {
  const FileHandle source = FileHandle::open_for_reading(from);
  FileHandle target = FileHandle::create(to);
  std::vector<std::byte> buffer(kCopyBytes);
  std::uint64_t offset = 0;
  while (const std::size_t got = source.read_some(offset, buffer)) {
    target.append(std::span(buffer).first(got));
    offset += got;
  }
  target.sync_and_close();
}

const char* torch_name(DType dtype) {
  if (dtype == DType::F32) return "float32";
  if (dtype == DType::BF16) return "bfloat16";
  STRATA_EXPECTS(dtype == DType::F16, "a model has no weights of type " + std::string(name_of(dtype)));
  return "float16";
}

}  // namespace

void copy_folder_files(const fs::path& source, const fs::path& destination) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (name == kTemplateFolder && entry.is_directory()) {
      fs::create_directory(destination / name);
      for (const auto& file : fs::directory_iterator(entry))
        copy_durably(file.path(), destination / name / file.path().filename());
      sync_folder(destination / name);
    } else if (!entry.is_directory() && belongs_to_users(name)) {
      copy_durably(entry.path(), destination / name);
    }
  }
  sync_folder(destination);
}

void write_config(const fs::path& source, const fs::path& destination, DType dtype) {
  ordered_json config = parse_strict_json<ordered_json>(read_text_file(source, kMaxConfigBytes), source.string());
  if (!config.is_object()) throw DataError(source.string() + ": expected a JSON object");
  const bool new_dialect = config.contains("dtype") || config.contains("rope_parameters");
  if (config.contains("dtype") || (new_dialect && !config.contains("torch_dtype"))) config["dtype"] = torch_name(dtype);
  if (config.contains("torch_dtype") || !new_dialect) config["torch_dtype"] = torch_name(dtype);
  const std::string text = config.dump(2) + "\n";
  FileHandle file = FileHandle::create(destination / "config.json");
  file.append(std::as_bytes(std::span(text)));
  file.sync_and_close();
  sync_folder(destination);
}

}  // namespace strata::hf
