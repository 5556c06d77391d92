// The format: https://github.com/huggingface/safetensors#format - u64 little-endian header length, JSON, data without
// holes.
#include "hf/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/bytes.h"
#include "core/error.h"
#include "hf/strict_json.h"

namespace strata::hf {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;

std::string bytes_text(std::uint64_t bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

// What arrives instead of weights when a download went wrong; each has its own remedy.
void refuse_impostors(const FileHandle& file, std::uint64_t file_bytes) {
  const std::string name = file.path().string();
  if (file_bytes == 0) throw DataError(name + ": empty file; download it again");
  std::string start(std::min<std::uint64_t>(file_bytes, 64), '\0');
  start.resize(file.read_some(0, std::as_writable_bytes(std::span(start))));
  if (start.starts_with("version https://git-lfs")) {
    throw DataError(name + ": a git-lfs pointer instead of weights; run `git lfs pull` in that folder");
  }
  const std::size_t text = start.find_first_not_of(" \t\r\n");
  if (text != std::string::npos && (start.substr(text).starts_with("<!") || start.substr(text).starts_with("<html"))) {
    throw DataError(name + ": an HTML page instead of weights; download the file itself");
  }
}

std::uint64_t read_header_length(const FileHandle& file, std::uint64_t file_bytes) {
  const std::string name = file.path().string();
  if (file_bytes < kLengthBytes) throw DataError(name + ": truncated, only " + bytes_text(file_bytes));
  std::array<std::byte, kLengthBytes> raw{};
  if (file.read_some(0, raw) != raw.size()) throw DataError(name + ": became shorter while it was read");
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(raw[i]);
  const std::string says = name + ": the header length field says " + bytes_text(length);
  if (length > kMaxHeaderBytes) {
    throw DataError(says + ", at most " + std::to_string(kMaxHeaderBytes) + " are accepted; not a safetensors file");
  }
  if (length > file_bytes - kLengthBytes) {
    throw DataError(says + ", but the file has " + bytes_text(file_bytes) + " in all; truncated or not safetensors");
  }
  if (length < 2) throw DataError(says + ", too few for a header; not a safetensors file");
  return length;
}

[[noreturn]] void refuse_tensor(const std::string& where, const std::string& tensor, const std::string& why) {
  throw DataError(where + ": tensor \"" + tensor + "\": " + why);
}

// A list of whole numbers from 0 that fit int64.
std::vector<std::int64_t> natural_numbers(const json& entry, const char* key, const std::string& where,
                                          const std::string& tensor) {
  const std::string problem = std::string(key) + " is not a list of whole numbers from 0";
  if (!entry.contains(key) || !entry.at(key).is_array()) refuse_tensor(where, tensor, problem);
  std::vector<std::int64_t> numbers;
  for (const json& value : entry.at(key)) {
    // nlohmann stores what has no minus sign as unsigned, and what overflows as a float.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse_tensor(where, tensor, problem);
    }
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

// numel * bytes per element; refuses a product that wraps, as that would pass a size check it should fail.
std::uint64_t tensor_bytes(const TensorInfo& tensor, const std::string& where) {
  std::uint64_t bytes = bytes_of(tensor.dtype);
  for (const std::int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
      refuse_tensor(where, tensor.name, "its shape has more bytes than 64 bits can count");
    }
  }
  return bytes;
}

TensorInfo parse_tensor(const std::string& name, const json& entry, const std::string& where,
                        std::uint64_t data_begins) {
  if (!entry.is_object()) refuse_tensor(where, name, "expected an object with dtype, shape and data_offsets");
  if (!entry.contains("dtype") || !entry.at("dtype").is_string()) refuse_tensor(where, name, "no dtype");
  const std::string dtype_name = entry.at("dtype").get<std::string>();
  const std::optional<DType> dtype = dtype_from_name(dtype_name);
  if (!dtype) {
    refuse_tensor(where, name,
                  "dtype " + dtype_name + " is not supported (F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL are)");
  }
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = *dtype;
  tensor.shape = natural_numbers(entry, "shape", where, name);
  const std::vector<std::int64_t> offsets = natural_numbers(entry, "data_offsets", where, name);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    refuse_tensor(where, name, "data_offsets are not [begin, end] with begin <= end");
  }
  tensor.bytes = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  tensor.offset_bytes = data_begins + static_cast<std::uint64_t>(offsets[0]);
  const std::uint64_t expected = tensor_bytes(tensor, where);
  if (tensor.bytes != expected) {
    refuse_tensor(where, name,
                  "data_offsets span " + bytes_text(tensor.bytes) + ", shape and dtype need " + bytes_text(expected));
  }
  return tensor;
}

std::map<std::string, std::string> parse_metadata(const json& entry, const std::string& where) {
  std::map<std::string, std::string> metadata;
  if (entry.is_null()) return metadata;
  if (!entry.is_object()) throw DataError(where + ": __metadata__ is not an object of strings");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) throw DataError(where + ": __metadata__ entry \"" + key + "\" is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Tensors must tile the data exactly: an overlap aliases two weights, a hole hides bytes, a short file lost some.
void check_layout(std::vector<TensorInfo>& tensors, const std::string& where, std::uint64_t data_begins,
                  std::uint64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset_bytes, a.bytes) < std::tie(b.offset_bytes, b.bytes);
  });
  std::uint64_t end = data_begins;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset_bytes < end) {
      refuse_tensor(where, tensor.name, "its data overlaps that of \"" + (previous ? previous->name : "") + '"');
    }
    if (tensor.offset_bytes > end) {
      refuse_tensor(where, tensor.name, "a hole of " + bytes_text(tensor.offset_bytes - end) + " before its data");
    }
    end = tensor.offset_bytes + tensor.bytes;
    previous = &tensor;
  }
  if (file_bytes < end) {
    throw DataError(where + ": truncated, " + bytes_text(end) + " expected, " + bytes_text(file_bytes) +
                    " there; download it again");
  }
  if (file_bytes > end) {
    throw DataError(where + ": " + bytes_text(file_bytes - end) + " after the last tensor (" + bytes_text(end) +
                    " expected, " + bytes_text(file_bytes) + " there)");
  }
}

}  // namespace

SafetensorsHeader read_safetensors_header(const FileHandle& file) {
  const std::string where = file.path().string();
  const std::uint64_t file_bytes = file.size();
  refuse_impostors(file, file_bytes);
  const std::uint64_t length = read_header_length(file, file_bytes);
  std::string text(length, '\0');
  text.resize(file.read_some(kLengthBytes, std::as_writable_bytes(std::span(text))));
  if (text.size() != length) throw DataError(where + ": became shorter while it was read");

  const json object = parse_strict_json<json>(text, where + ": header");
  if (!object.is_object()) throw DataError(where + ": the header is not a JSON object");
  SafetensorsHeader header;
  const std::uint64_t data_begins = kLengthBytes + length;
  for (const auto& [name, entry] : object.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(entry, where);
      continue;
    }
    TensorInfo tensor = parse_tensor(name, entry, where, data_begins);
    tensor.file = file.path();
    header.tensors.push_back(std::move(tensor));
  }
  check_layout(header.tensors, where, data_begins, file_bytes);
  return header;
}

}  // namespace strata::hf
