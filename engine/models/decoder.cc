#include "engine/models/decoder.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/container/modulelist.h>

#include "engine/core/base/check.h"
#include "engine/models/documents.h"

namespace moonshard {
namespace {

// c tanh(x / c): about x where x is small, and never beyond c.
at::Tensor Softcap(const at::Tensor& x, double cap) { return at::tanh(x / cap) * cap; }

}  // namespace

nn::RMSNorm MakeRmsNorm(const DecoderConfig& config) {
  return nn::RMSNorm(nn::RMSNormOptions(config.hidden_size).eps(config.norm_eps));
}

MlpSizes MlpSizesOf(const DecoderConfig& config, bool bias) {
  return {config.hidden_size, config.intermediate_size, config.activation, bias};
}

PreNormLayerImpl::PreNormLayerImpl(PreNormParts parts) : parts_(std::move(parts)) {
  if (parts_.self_attn) register_module("self_attn", parts_.self_attn);
  if (parts_.mlp) register_module(parts_.mlp_name, parts_.mlp.module());
  if (parts_.self_attn) register_module("input_layernorm", parts_.input_layernorm.module());
  if (parts_.mlp) register_module("post_attention_layernorm", parts_.post_attention_layernorm.module());
}

PreNormLayerImpl::PreNormLayerImpl(const DecoderConfig& config, std::shared_ptr<SequenceBlock> self_attn,
                                   UnaryModule mlp, const std::string& mlp_name)
    : PreNormLayerImpl(
          PreNormParts{std::move(self_attn), std::move(mlp), MakeRmsNorm(config), MakeRmsNorm(config), mlp_name}) {}

at::Tensor PreNormLayerImpl::forward(const at::Tensor& hidden, const LayerContext& context) {
  at::Tensor stream = hidden;
  if (parts_.self_attn) stream = stream + parts_.self_attn->forward(parts_.input_layernorm(stream), context);
  if (parts_.mlp) stream = stream + parts_.mlp(parts_.post_attention_layernorm(stream));
  return stream;
}

bool DecoderImpl::Kind::needs_mask() const {
  return has_others || !std::ranges::all_of(attention, &AttentionBlock::has_ring);
}

DecoderImpl::DecoderImpl(const DecoderSpec& spec)
    : kind_of_layer_(spec.config.kind_of_layer), embedding_scale_(spec.embedding_scale) {
  const DecoderConfig& config = spec.config;
  for (const AttentionKind& kind : config.kinds) kinds_.push_back({Rotary(kind.rope), kind.window, {}, false});
  auto table = torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size);
  if (config.pad_token_id) table.padding_idx(*config.pad_token_id);
  embed_tokens = register_module("embed_tokens", nn::Embedding(table));
  auto list = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(spec.layer(i));
    list->push_back(std::static_pointer_cast<torch::nn::Module>(layers_.back()));
    Kind& kind = kinds_[kind_of_layer_[static_cast<size_t>(i)]];
    const size_t before = kind.attention.size();
    for (const auto& item : layers_.back()->named_modules("model.layers." + std::to_string(i))) {
      auto* const block = dynamic_cast<AttentionBlock*>(item.value().get());
      if (block == nullptr) continue;
      block->SetPath(item.key());
      kind.attention.push_back(block);
    }
    if (kind.attention.size() == before) kind.has_others = true;
  }
  norm_ = spec.norm ? spec.norm() : UnaryModule(MakeRmsNorm(config));
  register_module(spec.norm_name, norm_.module());
}

// Rotary tables and masks are made once per kind of attention, not per layer: they depend on positions and the kind
// alone, and a model has one or two kinds. A mask [T, T] is not made for layers with a ring, where T may be large.
// Without position ids and documents the length is known from the shape, so no position is read from the device. Of own
// inputs, all of them are those of the full sequence from the first line on, and only the ids and the hidden states are
// this rank's: what depends on tokens of other ranks is then decided alike on every rank.
at::Tensor DecoderImpl::forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                                const std::optional<at::Tensor>& position_ids,
                                const std::optional<at::Tensor>& document_ids) {
  OwnInputs::Full full{input_ids.size(1), {attention_mask, position_ids, document_ids}};
  if (own_inputs_) full = own_inputs_->Gather(input_ids, full.inputs);
  const int64_t length = full.length;
  const auto& [mask, given_positions, given_documents] = full.inputs;
  at::Tensor hidden = embed_tokens(input_ids);
  if (embedding_scale_) {
    // Rounded to the dtype of the hidden states first, as transformers does.
    const at::Tensor scale = at::scalar_tensor(*embedding_scale_, at::kFloat).to(hidden.scalar_type());
    hidden = hidden * scale.item<double>();
  }
  // Of the full sequence, of which only the shape is used.
  const at::Tensor tokens = own_inputs_ ? input_ids.new_empty({1, 1}).expand({input_ids.size(0), length}) : input_ids;
  const at::Tensor documents = DocumentsOf(tokens, given_documents, given_positions, mask.has_value());
  const bool counted = !given_positions && documents.defined();
  const at::Tensor positions = given_positions ? *given_positions
                               : counted       ? PositionsIn(documents)
                                               : at::arange(length, input_ids.options()).unsqueeze(0);
  const std::optional<int64_t> known_length = given_positions || counted ? std::nullopt : std::optional(length);
  const at::Tensor padding = PaddingOf(mask, input_ids.device());
  std::vector<LayerContext> contexts;
  for (Kind& kind : kinds_) {
    contexts.push_back({kind.rotary.Tables(positions, hidden.scalar_type(), known_length), std::nullopt, positions,
                        kind.window, padding, documents});
    if (kind.needs_mask()) contexts.back().mask = MaskOf(length, contexts.back(), input_ids.device());
  }
  for (size_t i = 0; i < layers_.size(); ++i) hidden = layers_[i]->forward(hidden, contexts[kind_of_layer_[i]]);
  return norm_(hidden);
}

DecoderForCausalLmImpl::DecoderForCausalLmImpl(const DecoderSpec& spec) : logit_softcap_(spec.logit_softcap) {
  const DecoderConfig& config = spec.config;
  model_ = register_module("model", Decoder(spec));
  head_ = spec.head ? spec.head() : UnaryModule(MakeLinear(config.hidden_size, config.vocab_size, /*bias=*/false));
  register_module("lm_head", head_.module());
  if (!config.tie_word_embeddings) return;
  auto* linear = dynamic_cast<nn::LinearImpl*>(head_.module().get());
  Check(linear != nullptr, "only a Linear can be tied to the embedding");
  linear->TieWeight(model_->embed_tokens->weight);
}

const nn::LinearImpl* DecoderForCausalLmImpl::head() const {
  return logit_softcap_ ? nullptr : dynamic_cast<const nn::LinearImpl*>(head_.module().get());
}

at::Tensor DecoderForCausalLmImpl::forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                                           const std::optional<at::Tensor>& position_ids,
                                           const std::optional<at::Tensor>& document_ids) {
  at::Tensor hidden = model_(input_ids, attention_mask, position_ids, document_ids);
  if (without_head_) return hidden;
  const at::Tensor logits = head_(hidden);
  return logit_softcap_ ? Softcap(logits, *logit_softcap_) : logits;
}

}  // namespace moonshard
