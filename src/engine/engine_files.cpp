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
#include "engine/engine_impl.h"
#include "engine/random_weights.h"
#include "engine/shard_files.h"
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

offload::ShardId Engine::Impl::master(std::size_t group) const {
  return has_master() && config.training ? shards_[group].states.front() : shards_[group].param;
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

void Engine::Impl::fill_from(const std::function<void(const Named&, std::uint64_t, TensorSpan)>& source,
                             offload::ShardId shard, std::size_t group) {
  fill_shard(*store_, shard, compute_->layouts()[group], comm_.rank(),
             [&](std::size_t param, std::uint64_t first, TensorSpan destination) {
               source({group, param}, first, destination);
             });
}

void Engine::Impl::fill_moments() {
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    for (std::size_t s = has_master() ? 1 : 0; s < shards_[g].states.size(); ++s) {
      fill_from([](const Named&, std::uint64_t, TensorSpan) {}, shards_[g].states[s], g);  // zeros
    }
  }
}

void Engine::Impl::load_weights() {
  std::function<void(const Named&, std::uint64_t, TensorSpan)> source;
  std::optional<hf::TensorCatalog> catalog;
  if (config.random_weights) {
    source = [this](const Named& named, std::uint64_t first, TensorSpan destination) {
      random_weights(decl(named).name, config.seed, first, destination);
    };
  } else {
    catalog = checked_catalog();
    if (parts.config.tie_word_embeddings) check_tied_head(*catalog, file_buffer_.span());
    source = [&](const Named& named, std::uint64_t first, TensorSpan destination) {
      read_converted(*catalog, *catalog->find(decl(named).name), first, destination, file_buffer_.span(), host_math_);
    };
  }
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    fill_from(source, shards_[g].param, g);
    if (master(g) != shards_[g].param) fill_from(source, master(g), g);
  }
  if (config.training) fill_moments();
}

void Engine::Impl::copy_out(offload::ShardId shard, const Named& named, std::uint64_t first, TensorSpan destination) {
  const DType dtype = store_->spec(shard).dtype;
  const zero::FlatLayout& layout = compute_->layouts()[named.group];
  if (dtype == destination.dtype) {
    read_param(*store_, shard, layout, named.param, first, destination);
    return;
  }
  const std::span<std::byte> scratch = file_buffer_.span().subspan(file_buffer_.bytes() / 2);
  const std::size_t at_once = scratch.size() / bytes_of(dtype);
  for (std::size_t done = 0; done < destination.numel;) {
    const std::size_t n = std::min(at_once, destination.numel - done);
    const TensorSpan part{scratch.data(), dtype, n};
    read_param(*store_, shard, layout, named.param, first + done, part);
    host_math_.cast(destination.subspan(done, n), part);
    done += n;
  }
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
      copy_out(master(params[i].group), params[i], offset_bytes / element,
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
  struct Entry {
    Named named;
    offload::ShardId shard;
  };
  std::vector<hf::TensorToWrite> tensors;
  std::vector<Entry> entries;
  const std::vector<StateSpec> states = adamw_.states(config.param_type);
  for (const Named& named : all_params()) {
    const zero::ParamDecl& param = decl(named);
    const zero::GroupShards& shards = shards_[named.group];
    if (!has_master()) {
      tensors.push_back({"master." + param.name, DType::F32, param.shape});
      entries.push_back({named, shards.param});
    }
    for (std::size_t s = 0; s < states.size(); ++s) {
      tensors.push_back({states[s].name + "." + param.name, states[s].dtype, param.shape});
      entries.push_back({named, shards.states[s]});
    }
  }
  const auto produce = [&](std::size_t i, std::uint64_t offset_bytes, std::span<std::byte> destination) {
    const std::size_t element = bytes_of(tensors[i].dtype);
    copy_out(entries[i].shard, entries[i].named, offset_bytes / element,
             {destination.data(), tensors[i].dtype, destination.size() / element});
  };
  hf::WriteOptions options;
  options.stem = "states";
  options.max_shard_bytes = std::numeric_limits<std::uint64_t>::max();  // one file, kStatesFile
  hf::write_safetensors(folder, tensors, produce, file_buffer_.span().first(file_buffer_.bytes() / 2), options);
}

void Engine::Impl::load_states(const std::filesystem::path& folder, const RunState& run_state) {
  use_schedule(Mode::None);
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_file(folder / kStatesFile);
  const auto source_of = [&](const std::string& kind) {
    return [this, &catalog, kind](const Named& named, std::uint64_t first, TensorSpan destination) {
      const std::string name = kind + "." + decl(named).name;
      const hf::TensorInfo* tensor = catalog.find(name);
      if (tensor == nullptr) throw DataError("the checkpoint has no " + name);
      if (tensor->shape != decl(named).shape) {
        throw DataError("the checkpoint's " + name + " has shape " + shape_text(tensor->shape) + ", the model needs " +
                        shape_text(decl(named).shape));
      }
      read_converted(catalog, *tensor, first, destination, file_buffer_.span(), host_math_);
    };
  };
  const std::vector<StateSpec> states = adamw_.states(config.param_type);
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    fill_from(source_of("master"), shards_[g].param, g);
    for (std::size_t s = 0; s < states.size(); ++s) fill_from(source_of(states[s].name), shards_[g].states[s], g);
  }
  state = run_state;
}

std::vector<float> Engine::Impl::parameter(const std::string& name) {
  use_schedule(Mode::None);
  for (const Named& named : all_params()) {
    if (decl(named).name != name) continue;
    std::vector<float> values(decl(named).numel());
    copy_out(master(named.group), named, 0, {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
    return values;
  }
  throw ConfigError("the model has no parameter " + name);
}

}  // namespace strata::engine
