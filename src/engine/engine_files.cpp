// Weights in, weights and states out.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "cpu_adam/state_conversion.h"
#include "engine/engine_impl.h"
#include "engine/random_weights.h"
#include "engine/shard_files.h"
#include "engine/state_files.h"
#include "hf/export.h"

namespace strata::engine {
namespace {

constexpr const char* kStatesFile = "states.safetensors";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

// Old checkpoints carry rotary tables, which are recomputed.
bool is_derived(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq");
}

// A tied model may carry its head twice; both copies must then say the same.
void check_tied_head(const hf::TensorCatalog& catalog, std::span<std::byte> buffer) {
  const hf::TensorInfo* head = catalog.find(kHead);
  const hf::TensorInfo* embedding = catalog.find(kEmbedding);
  if (head == nullptr || embedding == nullptr) return;
  bool same = head->dtype == embedding->dtype && head->shape == embedding->shape;
  const std::span<std::byte> a = buffer.first(buffer.size() / 2);
  const std::span<std::byte> b = buffer.subspan(buffer.size() / 2);
  for (std::uint64_t at = 0; same && at < head->bytes; at += a.size()) {
    const std::size_t n = std::min<std::uint64_t>(a.size(), head->bytes - at);
    catalog.read(*head, at, a.first(n));
    catalog.read(*embedding, at, b.first(n));
    same = std::memcmp(a.data(), b.data(), n) == 0;
  }
  if (!same) {
    throw DataError(head->file.string() + ": config.json ties the embeddings (tie_word_embeddings), but " + kHead +
                    " differs from " + kEmbedding + "; set tie_word_embeddings to false to train both");
  }
}

// One element of a parameter in a checkpoint, for a message. Ranges of a reader begin at multiples of 256.
float stored_value(StateReader& reader, const zero::ParamDecl& param, std::uint64_t element) {
  std::vector<float> values(element % 256 + 1);
  reader.param(param, element - (values.size() - 1),
               {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
  return values.back();
}

}  // namespace

std::vector<Engine::Impl::Named> Engine::Impl::all_params() const {
  std::vector<Named> result;
  for (std::size_t g = 0; g < compute_->layouts().size(); ++g) {
    for (std::size_t p = 0; p < compute_->layouts()[g].params().size(); ++p) result.push_back({g, p});
  }
  return result;
}

const zero::ParamDecl& Engine::Impl::decl(const Named& named) const {
  return compute_->layouts()[named.group].group().params[named.param];
}

hf::TensorCatalog Engine::Impl::checked_catalog() const {
  hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(config.model);
  std::string problems;
  std::set<std::string> known;
  for (const Named& named : all_params()) {
    const zero::ParamDecl& param = decl(named);
    known.insert(param.name);
    const hf::TensorInfo* tensor = catalog.find(param.name);
    if (tensor == nullptr) {
      problems += "\n  " + param.name + ": absent";
    } else if (tensor->shape != param.shape) {
      problems += "\n  " + param.name + ": shape " + shape_text(tensor->shape) + ", config.json needs " +
                  shape_text(param.shape);
    } else if (!is_float(tensor->dtype)) {
      problems +=
          "\n  " + param.name + ": type " + std::string(name_of(tensor->dtype)) + ", supported are F32, BF16, F16";
    }
  }
  if (!problems.empty()) {
    throw DataError(config.model.string() + ": the weights do not fit config.json:" + problems);
  }
  for (const auto& [name, tensor] : catalog.tensors()) {
    const bool second_head = parts.config.tie_word_embeddings && name == kHead;
    if (!known.contains(name) && !is_derived(name) && !second_head) {
      log::warning("ignoring tensor " + name + ", which this architecture does not have");
    }
  }
  return catalog;
}

void Engine::Impl::fill_from(const ParamSource& source, offload::ShardId shard, std::size_t group,
                             std::size_t elements_per_value) {
  fill_shard(*store_, shard, compute_->layouts()[group],
             shards_[group].first / compute_->layouts()[group].shard_numel(), elements_per_value,
             [&](std::size_t param, std::uint64_t first, TensorSpan destination) {
               source({group, param}, first, destination);
             });
}

// States of parameters that have just been read: their master, or what the 16-bit weight lacks; moments are zero.
void Engine::Impl::fill_states(const ParamSource& source) {
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    for (std::size_t s = 0; s < states_.size(); ++s) {
      const auto fill = [&](const Named& named, std::uint64_t first, TensorSpan destination) {
        if (states_[s].name == "master") source(named, first, destination);
        if (states_[s].name != "remainder") return;
        in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
          const TensorSpan values = scratch(0, DType::F32, n);
          source(named, first + done, values);
          cpu_adam::split_master(*pool_, scratch(1, DType::BF16, n), destination.subspan(done, n), values);
        });
      };
      fill_from(fill, shards_[g].states[s], g, states_[s].elements_per_value);
    }
  }
}

void Engine::Impl::load_weights() {
  ParamSource source;
  std::optional<hf::TensorCatalog> catalog;
  if (config.random_weights) {
    source = [this](const Named& named, std::uint64_t first, TensorSpan destination) {
      random_weights(decl(named).name, config.seed, first, destination);
    };
  } else {
    catalog = checked_catalog();
    if (parts.config.tie_word_embeddings) check_tied_head(*catalog, file_buffer_.span());
    source = [&](const Named& named, std::uint64_t first, TensorSpan destination) {
      const hf::TensorInfo& tensor = *catalog->find(decl(named).name);
      const std::span<std::byte> buffer = file_buffer_.span().first(file_buffer_.bytes() / 2);
      read_converted(*catalog, tensor, first, destination, buffer, host_math_);
      require_finite_fp16(tensor.file.string() + ": " + decl(named).name, first, destination, [&](std::size_t i) {
        float value = 0;
        const TensorSpan one{reinterpret_cast<std::byte*>(&value), DType::F32, 1};
        read_converted(*catalog, tensor, first + i, one, buffer, host_math_);
        return value;
      });
    };
  }
  for (std::size_t g = 0; g < shards_.size(); ++g) fill_from(source, shards_[g].param, g, 1);
  if (config.training) fill_states(source);
}

// The upper half of the file buffer, in parts of kConversionChunk fp32 elements.
TensorSpan Engine::Impl::scratch(std::size_t part, DType dtype, std::size_t numel) const {
  return {file_buffer_.data() + file_buffer_.bytes() / 2 + part * kConversionChunk * sizeof(float), dtype, numel};
}

void Engine::Impl::copy_master(const Named& named, std::uint64_t first, TensorSpan values) {
  const zero::FlatLayout& layout = compute_->layouts()[named.group];
  const zero::GroupShards& shards = shards_[named.group];
  const bool own_master = config.param_type == DType::F32;
  if (own_master || (!states_.empty() && states_.front().name == "master")) {
    read_param(*store_, own_master ? shards.param : shards.states.front(), layout, named.param, 1, first, values);
    return;
  }
  in_chunks(values.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan weight = scratch(0, config.param_type, n);
    read_param(*store_, shards.param, layout, named.param, 1, first + done, weight);
    if (states_.empty()) {
      host_math_.cast(values.subspan(done, n), weight);
      return;
    }
    const TensorSpan rest = scratch(1, DType::U16, n);
    read_param(*store_, shards.states.front(), layout, named.param, 1, first + done, rest);
    cpu_adam::join_master(*pool_, values.subspan(done, n), weight, rest);
  });
}

void Engine::Impl::copy_param(const Named& named, std::uint64_t first, TensorSpan destination) {
  if (destination.dtype == config.param_type) {
    read_param(*store_, shards_[named.group].param, compute_->layouts()[named.group], named.param, 1, first,
               destination);
    return;
  }
  if (destination.dtype == DType::F32) return copy_master(named, first, destination);
  in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
    const TensorSpan values = scratch(2, DType::F32, n);
    copy_master(named, first + done, values);
    host_math_.cast(destination.subspan(done, n), values);
  });
}

void Engine::Impl::export_model(const std::filesystem::path& folder) {
  use_schedule(Mode::None);
  // Types as in the source, so that size and config.json agree with what the user brought.
  std::optional<hf::TensorCatalog> source;
  if (!config.random_weights) source = hf::TensorCatalog::open_folder(config.model);
  std::vector<Named> params = all_params();
  std::vector<hf::TensorToWrite> tensors;
  for (const Named& named : params) {
    const zero::ParamDecl& param = decl(named);
    tensors.push_back({param.name, source ? source->find(param.name)->dtype : config.param_type, param.shape});
  }
  if (source && parts.config.tie_word_embeddings && source->find(kHead) != nullptr) {
    const auto embedding =
        std::find_if(params.begin(), params.end(), [&](const Named& named) { return decl(named).name == kEmbedding; });
    hf::TensorToWrite head = tensors[static_cast<std::size_t>(embedding - params.begin())];
    head.name = kHead;
    tensors.push_back(head);
    params.push_back(*embedding);
  }
  const std::filesystem::path temporary = folder.string() + ".tmp-" + std::to_string(::getpid());
  const auto discard = [&temporary] {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
  };
  try {
    std::filesystem::create_directories(temporary);
    const auto produce = [&](std::size_t i, std::uint64_t offset_bytes, std::span<std::byte> destination) {
      const std::size_t element = bytes_of(tensors[i].dtype);
      copy_param(params[i], offset_bytes / element,
                 {destination.data(), tensors[i].dtype, destination.size() / element});
    };
    hf::write_safetensors(temporary, tensors, produce, file_buffer_.span().first(file_buffer_.bytes() / 2));
    hf::write_config(config.model / "config.json", temporary, tensors.front().dtype);
    hf::copy_folder_files(config.model, temporary);
    std::filesystem::remove_all(folder);
    std::filesystem::rename(temporary, folder);
  } catch (const std::filesystem::filesystem_error& error) {  // which callers that catch Error would miss
    discard();
    throw IoError({error.code().value(), "export", error.path1().string(), 0, 0, {}});
  } catch (...) {
    discard();
    throw;
  }
}

void Engine::Impl::save_states(const std::filesystem::path& folder) {
  use_schedule(Mode::None);
  // See [Note: checkpoint tensors].
  struct Entry {
    Named named;
    offload::ShardId shard;
    std::size_t elements_per_value = 1;
  };
  std::vector<hf::TensorToWrite> tensors;
  std::vector<Entry> entries;
  const bool has_remainder = !states_.empty() && states_.front().name == "remainder";
  const bool has_master = !states_.empty() && states_.front().name == "master";
  for (const Named& named : all_params()) {
    const zero::ParamDecl& param = decl(named);
    const zero::GroupShards& shards = shards_[named.group];
    if (!has_master) {
      const std::string kind = has_remainder ? "param" : "master";
      tensors.push_back({state_tensor_name(kind, param.name), config.param_type, param.shape});
      entries.push_back({named, shards.param, 1});
    }
    for (std::size_t s = 0; s < states_.size(); ++s) {
      tensors.push_back(
          {state_tensor_name(states_[s].name, param.name), states_[s].dtype, state_tensor_shape(states_[s], param)});
      entries.push_back({named, shards.states[s], states_[s].elements_per_value});
    }
  }
  const auto produce = [&](std::size_t i, std::uint64_t offset_bytes, std::span<std::byte> destination) {
    const std::size_t element = bytes_of(tensors[i].dtype);
    const Named& named = entries[i].named;
    read_param(*store_, entries[i].shard, compute_->layouts()[named.group], named.param, entries[i].elements_per_value,
               offset_bytes / element, {destination.data(), tensors[i].dtype, destination.size() / element});
  };
  hf::WriteOptions options;
  options.stem = "states";
  options.max_shard_bytes = std::numeric_limits<std::uint64_t>::max();  // one file, kStatesFile
  hf::write_safetensors(folder, tensors, produce, file_buffer_.span().first(file_buffer_.bytes() / 2), options);
}

void Engine::Impl::load_states(const std::filesystem::path& folder, const RunState& run_state) {
  use_schedule(Mode::None);
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_file(folder / kStatesFile);
  StateReader reader(catalog, config.optimizer.kind, *pool_, host_math_, file_buffer_.span());
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    fill_from(
        [&](const Named& named, std::uint64_t first, TensorSpan destination) {
          reader.param(decl(named), first, destination);
          require_finite_fp16((folder / kStatesFile).string() + ": " + decl(named).name, first, destination,
                              [&](std::size_t i) { return stored_value(reader, decl(named), first + i); });
        },
        shards_[g].param, g, 1);
    for (std::size_t s = 0; s < states_.size(); ++s) {
      fill_from([&](const Named& named, std::uint64_t first,
                    TensorSpan destination) { reader.state(states_[s], decl(named), first, destination); },
                shards_[g].states[s], g, states_[s].elements_per_value);
    }
  }
  state = run_state;
  state.loss_scale = resumed_loss_scale(config.loss_scale, run_state.loss_scale);
}

std::vector<float> Engine::Impl::parameter(const std::string& name) {
  use_schedule(Mode::None);
  for (const Named& named : all_params()) {
    if (decl(named).name != name) continue;
    std::vector<float> values(decl(named).numel());
    copy_master(named, 0, {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
    return values;
  }
  throw ConfigError("the model has no parameter " + name);
}

}  // namespace strata::engine
