// Engine::Impl: weights and states written to files, by every rank its own part.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <optional>

#include "core/error.h"
#include "engine/all_ranks.h"
#include "engine/engine_impl.h"
#include "engine/replace_folder.h"
#include "engine/state_files.h"
#include "hf/export.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;

void require_visible(const fs::path& folder, std::size_t rank) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  throw IoError({ENOENT, "open", folder.string(), 0, 0,
                 "Rank 0 has made this folder, but rank " + std::to_string(rank) +
                     " cannot see it: output_dir must be on a file system that all ranks share"});
}

}  // namespace

void Engine::Impl::write_tensors(const fs::path& folder, const std::vector<TensorSource>& sources,
                                 const hf::WriteOptions& options) {
  std::vector<hf::TensorToWrite> tensors;
  for (const TensorSource& source : sources) tensors.push_back(source.tensor);
  const hf::SafetensorsPlan plan_of_files(tensors, options);
  on_every_rank(comm_, "write", [&] {
    use_schedule(Mode::None);
    if (comm_.rank() == 0) plan_of_files.create_files(folder);
  });
  on_every_rank(comm_, "write", [&] {
    require_visible(folder, comm_.rank());
    const std::span<std::byte> buffer = file_buffer_.span().first(file_buffer_.bytes() / 2);
    hf::SafetensorsWriter writer(plan_of_files, folder);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const TensorSource& source = sources[i];
      const DType dtype = source.tensor.dtype;
      // Every copy of the model holds the same values; the first one writes them.
      const ValueRange mine = collectives_.replica() > 0
                                  ? ValueRange{}
                                  : values_in_row(compute_->layouts()[source.param.group], source.param.param,
                                                  collectives_.shards().rank(), source.elements_per_value);
      in_chunks(mine.numel, hf::piece_bytes(buffer) / bytes_of(dtype), [&](std::size_t done, std::size_t n) {
        const TensorSpan piece{buffer.data(), dtype, n};
        source.read(mine.first + done, piece);
        writer.write(i, (mine.first + done) * bytes_of(dtype), {piece.data, piece.bytes()});
      });
    }
    writer.finish();
  });
}

void Engine::Impl::write_model(const fs::path& folder) {
  // Types as in the source, so that size and config.json agree with what the user brought.
  std::optional<hf::TensorCatalog> catalog;
  on_every_rank(comm_, "read", [&] {
    if (!config.random_weights) catalog = hf::TensorCatalog::open_folder(config.model);
  });
  std::vector<TensorSource> sources;
  const auto add = [&](const std::string& name, const Named& named) {
    const DType dtype = catalog ? catalog->find(decl(named).name)->dtype : config.param_type;
    sources.push_back({{name, dtype, decl(named).shape}, named, 1, [this, named](std::uint64_t first, TensorSpan to) {
                         copy_param(named, first, to);
                       }});
  };
  for (const Named& named : all_params()) add(decl(named).name, named);
  if (catalog && parts.config.tie_word_embeddings && catalog->find(kHead) != nullptr) {
    add(kHead, find_param(kEmbedding));
  }
  write_tensors(folder, sources, {});
  on_first_rank(comm_, "export", [&] {
    hf::write_config(config.model / "config.json", folder, sources.front().tensor.dtype);
    hf::copy_folder_files(config.model, folder);
  });
}

void Engine::Impl::export_model(const fs::path& folder) {
  // After the process that makes it.
  const fs::path temporary = folder.string() + broadcast_text(comm_, ".tmp-" + std::to_string(::getpid()));
  try {
    on_first_rank(comm_, "export", [&] { fs::create_directories(temporary); });
    write_model(temporary);
    on_first_rank(comm_, "export", [&] { replace_folder(temporary, folder); });
  } catch (...) {
    std::error_code ignored;
    if (comm_.rank() == 0) fs::remove_all(temporary, ignored);
    throw;
  }
}

void Engine::Impl::save_states(const fs::path& folder) {
  // See [Note: checkpoint tensors].
  std::vector<TensorSource> sources;
  const auto add = [&](const hf::TensorToWrite& tensor, const Named& named, const ShardSlice& from) {
    sources.push_back({tensor, named, from.elements_per_value, [this, named, from](std::uint64_t first, TensorSpan to) {
                         read_param(*store_, from, named.param, first, to);
                       }});
  };
  for (const Named& named : all_params()) {
    const zero::ParamDecl& param = decl(named);
    const std::span<const StateSpec> states = states_of(named.group);
    if (states.empty() || states.front().name != "master") {
      // In fp32 the weight is the master.
      const std::string kind = config.param_type == DType::F32 ? "master" : "param";
      add({state_tensor_name(kind, param.name), config.param_type, param.shape}, named,
          slice(named.group, shards_[named.group].param));
    }
    for (std::size_t s = 0; s < states.size(); ++s) {
      add({state_tensor_name(states_[s].name, param.name), states_[s].dtype, state_tensor_shape(states_[s], param)},
          named, state_slice(named.group, s));
    }
  }
  hf::WriteOptions options;
  options.stem = "states";
  options.max_shard_bytes = std::numeric_limits<std::uint64_t>::max();  // one file, kStatesFile
  write_tensors(folder, sources, options);
}

}  // namespace strata::engine
