#include "engine/init_model.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "engine/machine.h"
#include "engine/parts.h"
#include "engine/random_weights.h"
#include "hf/export.h"
#include "hf/file_handle.h"
#include "hf/model_config.h"
#include "hf/safetensors.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using namespace strata::literals;

constexpr std::size_t kBufferBytes = 8_MiB;
constexpr std::uint64_t kMaxConfigBytes = 16'000'000;
constexpr std::uint64_t kHeaderBytes = 1024;  // of a tensor in headers and index, more than they take

std::vector<hf::TensorToWrite> tensors_of(const fs::path& config, DType dtype) {
  const std::string text = hf::read_text_file(config, kMaxConfigBytes);
  std::vector<hf::TensorToWrite> tensors;
  for (const zero::GroupDecl& group : parameter_groups(hf::parse_model_config(text, config.string()))) {
    for (const zero::ParamDecl& param : group.params) tensors.push_back({param.name, dtype, param.shape});
  }
  return tensors;
}

InitSummary sum_of(const std::vector<hf::TensorToWrite>& tensors) {
  InitSummary sum;
  for (const hf::TensorToWrite& tensor : tensors) {
    std::uint64_t numel = 1;
    for (const std::int64_t dimension : tensor.shape) numel *= static_cast<std::uint64_t>(dimension);
    sum.parameters += numel;
    sum.bytes += numel * bytes_of(tensor.dtype);
  }
  return sum;
}

// Links followed and without a slash at the end, so that a sibling can be named and renamed.
fs::path resolved(const fs::path& folder) {
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder));
  return whole.has_filename() ? whole : whole.parent_path();
}

void write_folder(const fs::path& config, const fs::path& folder, const std::vector<hf::TensorToWrite>& tensors,
                  const InitOptions& options) {
  const std::unique_ptr<Parallel> threads = make_thread_pool(0);
  const std::uint64_t all = sum_of(tensors).bytes;
  std::uint64_t done = 0;
  const auto produce = [&](std::size_t i, std::uint64_t offset_bytes, std::span<std::byte> destination) {
    if (options.on_progress) options.on_progress(done, all);
    const std::size_t element = bytes_of(options.dtype);
    const TensorSpan piece{destination.data(), options.dtype, destination.size() / element};
    random_weights(*threads, tensors[i].name, options.seed, offset_bytes / element, piece);
    done += destination.size();
  };
  fs::create_directories(folder);
  std::vector<std::byte> buffer(kBufferBytes);
  hf::write_safetensors(folder, tensors, produce, buffer, {.max_shard_bytes = options.max_shard_bytes});
  hf::write_config(config, folder, options.dtype);
}

}  // namespace

InitSummary init_model(const fs::path& config, const fs::path& folder, const InitOptions& options) {
  STRATA_EXPECTS(options.dtype == DType::BF16 || options.dtype == DType::F32, "weights are drawn in bf16 or fp32");
  const std::vector<hf::TensorToWrite> tensors = tensors_of(config, options.dtype);
  const InitSummary sum = sum_of(tensors);
  fs::path temporary;
  const auto discard = [&temporary] {
    std::error_code ignored;
    if (!temporary.empty()) fs::remove_all(temporary, ignored);
  };
  try {
    const fs::path target = resolved(folder);
    if (fs::exists(target) && !(fs::is_directory(target) && fs::is_empty(target))) {
      throw ConfigError(folder.string() + " exists and is not an empty folder; name another one");
    }
    const std::uint64_t need = sum.bytes + kHeaderBytes * (tensors.size() + 1);
    const std::uint64_t have = free_disk_bytes(target);
    if (have < need) {
      throw OutOfBudget(folder.string() + ": " + std::to_string(sum.parameters) + " parameters in " +
                            std::string(name_of(options.dtype)) + " need " + format_bytes(need) + ", but only " +
                            format_bytes(have) + " are free; free some disk or name a folder on another",
                        need, have);
    }
    temporary = target.string() + ".tmp-" + std::to_string(::getpid());
    write_folder(config, temporary, tensors, options);
    fs::rename(temporary, target);
  } catch (const fs::filesystem_error& error) {  // which callers that catch Error would miss
    discard();
    throw IoError({error.code().value(), "make", error.path1().string(), 0, 0, {}});
  } catch (...) {
    discard();
    throw;
  }
  return sum;
}

}  // namespace strata::engine
