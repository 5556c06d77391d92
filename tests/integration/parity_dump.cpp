// strata_parity_dump MODEL_FOLDER BATCH.safetensors OUTPUT_FOLDER: what this engine's layers compute in fp32 for one
// micro-batch, for test_parity.py to compare with transformers. The batch holds "tokens" and "labels", both [B, T] I64,
// labels already shifted. Writes parity.safetensors: "loss_sum" and "tokens" [1] F64, "logits" [B, T, V], and
// "grad.NAME" for each parameter, of loss_sum.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/numeric.h"
#include "hf/model_config.h"
#include "hf/safetensors.h"
#include "models/decoder.h"
#include "zero/layer.h"
#include "zero/layer_compute.h"
#include "zero/torch_layer_compute.h"

namespace strata {
namespace {

using zero::FlatLayout;
using Flat = std::vector<float>;  // a group's parameters or gradients, laid out by its FlatLayout

std::vector<float> read_fp32(const hf::TensorCatalog& catalog, const std::string& name) {
  const hf::TensorInfo* info = catalog.find(name);
  if (info == nullptr) throw DataError("the checkpoint has no tensor " + name);
  std::vector<std::byte> bytes(info->bytes);
  catalog.read(*info, 0, bytes);
  std::vector<float> values(info->numel());
  if (info->dtype == DType::F32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else if (info->dtype == DType::BF16) {
    const auto* const source = reinterpret_cast<const std::uint16_t*>(bytes.data());
    std::transform(source, source + values.size(), values.begin(), bf16_to_float);
  } else {
    throw DataError(name + " is neither F32 nor BF16");
  }
  return values;
}

std::vector<Flat> read_weights(const hf::TensorCatalog& catalog, const std::vector<FlatLayout>& layouts) {
  std::vector<Flat> weights;
  for (const FlatLayout& layout : layouts) {
    Flat flat(layout.numel(), 0.0f);
    for (std::size_t i = 0; i < layout.params().size(); ++i) {
      const std::vector<float> values = read_fp32(catalog, layout.group().params[i].name);
      if (values.size() != layout.params()[i].numel) throw DataError("wrong size: " + layout.group().params[i].name);
      std::copy(values.begin(), values.end(), flat.begin() + static_cast<std::ptrdiff_t>(layout.params()[i].offset));
    }
    weights.push_back(std::move(flat));
  }
  return weights;
}

struct Batch {
  std::int64_t sequences = 0;
  std::int64_t tokens_each = 0;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
};

Batch read_batch(const std::filesystem::path& file) {
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_file(file);
  Batch batch;
  for (auto [name, ids] : {std::pair{"tokens", &batch.tokens}, std::pair{"labels", &batch.labels}}) {
    const hf::TensorInfo* info = catalog.find(name);
    if (info == nullptr || info->dtype != DType::I64 || info->shape.size() != 2) {
      throw DataError("the batch needs a [B, T] I64 tensor " + std::string(name));
    }
    ids->resize(info->numel());
    catalog.read(*info, 0, std::as_writable_bytes(std::span(*ids)));
    batch.sequences = info->shape[0];
    batch.tokens_each = info->shape[1];
  }
  return batch;
}

// A training pass as LayerRunner makes it; the gradient of a group that two layers name is their sum.
std::vector<Flat> train_gradients(zero::LayerCompute& compute, std::vector<Flat>& weights, const Batch& batch) {
  std::vector<Flat> gradients;
  for (std::size_t g = 0; g < weights.size(); ++g) {
    compute.binding(g).bind(reinterpret_cast<std::byte*>(weights[g].data()));
    gradients.emplace_back(weights[g].size(), 0.0f);
  }
  compute.begin(0, {batch.sequences, batch.tokens_each, batch.tokens, batch.labels}, zero::Pass::Train);
  for (std::size_t layer = 0; layer + 1 < compute.layers(); ++layer) compute.forward(0, layer);
  for (std::size_t layer = compute.layers(); layer-- > 0;) {
    std::vector<Flat> scratch;
    std::vector<std::byte*> pointers;
    for (const std::size_t g : compute.groups_of(layer)) {
      scratch.emplace_back(weights[g].size(), -1.0f);
      pointers.push_back(reinterpret_cast<std::byte*>(scratch.back().data()));
    }
    compute.backward(0, layer, pointers);
    for (std::size_t i = 0; i < scratch.size(); ++i) {
      Flat& sum = gradients[compute.groups_of(layer)[i]];
      std::transform(sum.begin(), sum.end(), scratch[i].begin(), sum.begin(), std::plus<>());
    }
  }
  return gradients;
}

// Logits [B, T, V] through the Layer interfaces.
std::vector<float> all_logits(zero::Model& model, const std::vector<FlatLayout>& layouts, std::vector<Flat>& weights,
                              Batch& batch) {
  const c10::AutoGradMode no_grad(false);
  const auto params = [&](const zero::Layer& layer) {
    std::vector<at::Tensor> tensors;
    for (const std::size_t g : layer.groups()) {
      for (std::size_t i = 0; i < layouts[g].params().size(); ++i) {
        tensors.push_back(at::from_blob(weights[g].data() + layouts[g].params()[i].offset,
                                        layouts[g].group().params[i].shape, at::TensorOptions(at::kFloat)));
      }
    }
    return tensors;
  };
  const zero::MicroBatch micro{
      at::from_blob(batch.tokens.data(), {batch.sequences, batch.tokens_each}, at::TensorOptions(at::kLong)), {}};
  at::Tensor hidden = model.embedding().forward(micro, params(model.embedding()));
  for (std::size_t i = 0; i < model.blocks(); ++i)
    hidden = model.block(i).forward(micro, hidden, params(model.block(i)));
  const at::Tensor logits = model.head().logits(hidden.flatten(0, 1), params(model.head())).contiguous();
  return {logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel()};
}

class Output {
 public:
  template <typename T>
  void add(std::string name, DType dtype, std::vector<std::int64_t> shape, const T* values, std::size_t numel) {
    const auto bytes = std::as_bytes(std::span(values, numel));
    tensors_.push_back({std::move(name), dtype, std::move(shape)});
    bytes_.emplace_back(bytes.begin(), bytes.end());
  }
  void write(const std::filesystem::path& folder) const {
    std::vector<std::byte> buffer(1 << 20);
    const auto produce = [this](std::size_t tensor, std::uint64_t offset_bytes, std::span<std::byte> destination) {
      std::copy_n(bytes_[tensor].begin() + static_cast<std::ptrdiff_t>(offset_bytes), destination.size(),
                  destination.begin());
    };
    hf::WriteOptions options;
    options.stem = "parity";
    hf::write_safetensors(folder, tensors_, produce, buffer, options);
  }

 private:
  std::vector<hf::TensorToWrite> tensors_;
  std::vector<std::vector<std::byte>> bytes_;
};

void dump(const std::filesystem::path& folder, const std::filesystem::path& batch_file,
          const std::filesystem::path& output_folder) {
  const hf::ModelConfig config = hf::read_model_config(folder);
  // A small chunk, so that tiny batches span several; not below 16 rows, where MKL's fp32 product over a long
  // vocabulary is ten times noisier (1.2e-5 of the largest element for 7 rows, 1e-6 for 16, K = 49152).
  auto owned = models::make_decoder(config, {.group_type = at::kFloat, .loss_chunk_tokens = 32});
  zero::Model& model = *owned;
  const auto compute = zero::make_torch_layer_compute(std::move(owned), DType::F32, /*world=*/1);
  const std::vector<FlatLayout>& layouts = compute->layouts();
  std::vector<Flat> weights = read_weights(hf::TensorCatalog::open_folder(folder), layouts);
  Batch batch = read_batch(batch_file);

  const std::vector<Flat> gradients = train_gradients(*compute, weights, batch);
  const zero::LossSum loss = compute->loss(0);
  const auto tokens = static_cast<double>(loss.tokens);
  const std::vector<float> logits = all_logits(model, layouts, weights, batch);

  Output output;
  output.add("loss_sum", DType::F64, {1}, &loss.loss_sum, 1);
  output.add("tokens", DType::F64, {1}, &tokens, 1);
  output.add("logits", DType::F32, {batch.sequences, batch.tokens_each, config.vocab_size}, logits.data(),
             logits.size());
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    for (std::size_t i = 0; i < layouts[g].params().size(); ++i) {
      const zero::ParamDecl& param = layouts[g].group().params[i];
      output.add("grad." + param.name, DType::F32, param.shape, gradients[g].data() + layouts[g].params()[i].offset,
                 layouts[g].params()[i].numel);
    }
  }
  output.write(output_folder);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: strata_parity_dump MODEL_FOLDER BATCH.safetensors OUTPUT_FOLDER\n";
    return 2;
  }
  try {
    at::set_num_threads(2);
    strata::dump(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
