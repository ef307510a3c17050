// Decoder: the common part of the reference decoders. Modules have Hugging Face's names, so that checkpoints load by
// name and plans for those names apply. An architecture defines its layers, norm and head (DecoderSpec); everything
// else is here.
//
//   model.embed_tokens   model.layers.N.(modules of the architecture)   model.norm   lm_head
//
// lm_head and embed_tokens share one weight if the config ties them. B is the batch, T the sequence length, H the
// hidden size, V the vocabulary. T and positions come from input_ids, which are those of all T tokens, or of this
// rank's own tokens under a plan with `inputs = "own"` (own_inputs.h). Build inside nn::DeferInit if the full model
// does not fit into the memory of one rank. Stage before: architecture.h. Stage after: apply.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "engine/models/attention.h"
#include "engine/models/decoder_config.h"
#include "engine/models/mlp.h"
#include "engine/models/rotary.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "engine/runtime/nn/own_inputs.h"

namespace moonshard {

// A module of any class whose forward takes one tensor and returns one tensor. Constructed from a module holder:
// `nn::Linear(4, 8)`.
class UnaryModule {
 public:
  UnaryModule() = default;
  template <class Impl>
  UnaryModule(torch::nn::ModuleHolder<Impl> holder)  // NOLINT(google-explicit-constructor): any holder is one
      : module_(holder.ptr()), forward_([impl = holder.ptr()](const at::Tensor& x) { return impl->forward(x); }) {}

  explicit operator bool() const { return module_ != nullptr; }
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  at::Tensor operator()(const at::Tensor& x) const { return forward_(x); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
};

// The parts of a pre-norm layer. A layer without self_attn has no input_layernorm, and a layer without mlp has no
// post_attention_layernorm.
struct PreNormParts {
  std::shared_ptr<SequenceBlock> self_attn;
  UnaryModule mlp;
  UnaryModule input_layernorm;           // before self_attn
  UnaryModule post_attention_layernorm;  // before mlp
  std::string mlp_name = "mlp";
};

// h = h + self_attn(input_layernorm(h)); h + mlp(post_attention_layernorm(h)). T may be a shard of the sequence: the
// layer only adds to the residual stream.
class PreNormLayerImpl : public SequenceBlock {
 public:
  explicit PreNormLayerImpl(PreNormParts parts);
  // Makes both norms with MakeRmsNorm.
  PreNormLayerImpl(const DecoderConfig& config, std::shared_ptr<SequenceBlock> self_attn, UnaryModule mlp,
                   const std::string& mlp_name = "mlp");
  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override;

 private:
  PreNormParts parts_;
};
MOONSHARD_MODULE(PreNormLayer);

// The result of reading the config of an architecture: numbers, and functions that construct the modules. The functions
// are called only if the config has no errors.
struct DecoderSpec {
  DecoderConfig config;
  std::function<std::shared_ptr<SequenceBlock>(int64_t index)> layer;
  std::function<UnaryModule()> norm;  // default: RMSNorm over the hidden size
  std::string norm_name = "norm";
  std::function<UnaryModule()> head;      // default: a Linear without bias
  std::optional<double> embedding_scale;  // factor of the embeddings, rounded to their dtype
  std::optional<double> logit_softcap;    // c tanh(logits / c)
};

// RMSNorm over the hidden size, with the config's epsilon.
nn::RMSNorm MakeRmsNorm(const DecoderConfig& config);
// The sizes of the MLP that `config` defines.
MlpSizes MlpSizesOf(const DecoderConfig& config, bool bias = false);

class DecoderImpl : public torch::nn::Module, public TakesOwnInputs {
 public:
  explicit DecoderImpl(const DecoderSpec& spec);
  // input_ids int64 [B, T] -> the last hidden states [B, T, H]. The other inputs: DecoderForCausalLmImpl::forward.
  at::Tensor forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     const std::optional<at::Tensor>& document_ids = std::nullopt);

  void SetOwnInputs(std::shared_ptr<const OwnInputs> inputs) override { own_inputs_ = std::move(inputs); }

  nn::Embedding embed_tokens = nullptr;

 private:
  struct Kind {
    Rotary rotary;
    std::optional<int64_t> window;
    std::vector<const AttentionBlock*> attention;  // of the layers of this kind
    bool has_others = false;                       // whether a layer of this kind has no AttentionBlock
    // Whether a layer may attend without a ring.
    bool needs_mask() const;
  };

  std::vector<Kind> kinds_;
  std::vector<size_t> kind_of_layer_;
  std::vector<std::shared_ptr<SequenceBlock>> layers_;
  UnaryModule norm_;
  std::optional<double> embedding_scale_;
  std::shared_ptr<const OwnInputs> own_inputs_;
};
MOONSHARD_MODULE(Decoder);

class DecoderForCausalLmImpl : public torch::nn::Module {
 public:
  explicit DecoderForCausalLmImpl(const DecoderSpec& spec);

  // input_ids int64 [B, T] -> logits [B, T, V] in the weights' dtype. attention_mask [B or 1, T]: nonzero at
  // tokens; default: all positions are tokens. document_ids, integers [B or 1, T]: the documents that a row holds
  // (documents.h); default: one, or those that position_ids without an attention_mask show, as in transformers.
  // position_ids int64 [B or 1, T]; default: 0 .. T-1 within each document of document_ids. Throws c10::ValueError for
  // document_ids of another shape or dtype.
  //
  // Under a plan with `inputs = "own"` every rank of cp passes these inputs for its own tokens, [B, t] and [B or 1, t],
  // which may be none, and gets the logits of its own tokens. Position_ids are those in the full sequence (or in the
  // documents); the default is right for each rank. Which tokens those are, and in which order, say TokenShards::Runs
  // and Take (sequence_loss.h). Full rows on every rank, or runs in another order, fit as well and are not noticed:
  // they are another sequence. A loss of these logits is a sum over the ranks of cp, divided by the count of all
  // (CrossEntropy of OwnTargets). Throws the errors of OwnInputs::Gather.
  at::Tensor forward(const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask = std::nullopt,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     const std::optional<at::Tensor>& document_ids = std::nullopt);

  // If `leave_out` is true, every following forward returns the last hidden states [B, T, H] instead of logits, for a
  // loss that applies the head itself to one chunk of tokens at a time (loss/sharded_logits.h).
  void LeaveOutHead(bool leave_out) { without_head_ = leave_out; }
  // The Linear that computes the logits from the hidden states, owned by this module; nullptr if the logits are
  // computed in another way (a soft cap).
  const nn::LinearImpl* head() const;

 private:
  Decoder model_ = nullptr;
  UnaryModule head_;
  bool without_head_ = false;
  std::optional<double> logit_softcap_;
};
MOONSHARD_MODULE(DecoderForCausalLm);

}  // namespace moonshard
