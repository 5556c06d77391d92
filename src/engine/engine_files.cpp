// Engine::Impl: weights and states read from files into the shards of this rank.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "cpu_adam/state_conversion.h"
#include "engine/all_ranks.h"
#include "engine/engine_impl.h"
#include "engine/random_weights.h"
#include "engine/shard_files.h"
#include "engine/state_files.h"

namespace strata::engine {
namespace {

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

Engine::Impl::Named Engine::Impl::find_param(const std::string& name) const {
  for (const Named& named : all_params()) {
    if (decl(named).name == name) return named;
  }
  throw ConfigError("the model has no parameter " + name);
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

ShardSlice Engine::Impl::slice(std::size_t group, offload::ShardId shard, std::size_t elements_per_value) const {
  return {compute_->layouts()[group], shard, shards_[group].first, elements_per_value};
}

void Engine::Impl::fill_from(const ParamSource& source, std::size_t group, const ShardSlice& slice) {
  fill_shard(*store_, slice, [&](std::size_t param, std::uint64_t first, TensorSpan destination) {
    source({group, param}, first, destination);
  });
}

// States of parameters that have just been read: their master, or what the 16-bit weight lacks; moments are zero.
void Engine::Impl::fill_states(const ParamSource& source) {
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    for (std::size_t s = 0; s < states_of(g).size(); ++s) {
      const auto fill = [&](const Named& named, std::uint64_t first, TensorSpan destination) {
        if (states_[s].name == "master") source(named, first, destination);
        if (states_[s].name != "remainder") return;
        in_chunks(destination.numel, kConversionChunk, [&](std::size_t done, std::size_t n) {
          const TensorSpan values = scratch(0, DType::F32, n);
          source(named, first + done, values);
          cpu_adam::split_master(*pool_, scratch(1, DType::BF16, n), destination.subspan(done, n), values);
        });
      };
      fill_from(fill, g, state_slice(g, s));
    }
  }
}

void Engine::Impl::load_weights() {
  on_every_rank(comm_, "read the weights", [this] { read_weights(); });
}

void Engine::Impl::read_weights() {
  ParamSource source;
  std::optional<hf::TensorCatalog> catalog;
  if (config.random_weights) {
    source = [this](const Named& named, std::uint64_t first, TensorSpan destination) {
      random_weights(*pool_, decl(named).name, config.seed, first, destination);
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
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    fill_from(source, g, slice(g, shards_[g].param));
    parameters_changed(g);
  }
  if (config.training) fill_states(source);
}

void Engine::Impl::load_states(const std::filesystem::path& folder, const RunState& run_state) {
  on_every_rank(comm_, "read a checkpoint", [&] {
    use_schedule(Mode::None);
    read_states(folder);
  });
  state = run_state;
  state.loss_scale = resumed_loss_scale(config.loss_scale, run_state.loss_scale);
}

void Engine::Impl::read_states(const std::filesystem::path& folder) {
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_file(folder / kStatesFile);
  StateReader reader(catalog, config.optimizer.kind, *pool_, host_math_, file_buffer_.span());
  for (std::size_t g = 0; g < shards_.size(); ++g) {
    fill_from(
        [&](const Named& named, std::uint64_t first, TensorSpan destination) {
          reader.param(decl(named), first, destination);
          require_finite_fp16((folder / kStatesFile).string() + ": " + decl(named).name, first, destination,
                              [&](std::size_t i) { return stored_value(reader, decl(named), first + i); });
        },
        g, slice(g, shards_[g].param));
    parameters_changed(g);
    for (std::size_t s = 0; s < states_of(g).size(); ++s) {
      fill_from([&](const Named& named, std::uint64_t first,
                    TensorSpan destination) { reader.state(states_[s], decl(named), first, destination); },
                g, state_slice(g, s));
    }
  }
}

}  // namespace strata::engine
