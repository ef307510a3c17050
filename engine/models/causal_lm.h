// CausalLm: one interface for two forms of causal language models: a reference model, which is built from a
// config.json, and an exported program. A reference model that is built inside nn::DeferInit has parameters without
// storage.
// Stage after: apply, which shards and loads the model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/models/decoder.h"
#include "engine/models/program/program.h"

namespace moonshard {

class RouterLosses;  // router_losses.h

struct CausalLm {
  std::string architecture;  // "LlamaForCausalLM"
  std::shared_ptr<torch::nn::Module> module;
  // input_ids, attention_mask, position_ids -> logits, as DecoderForCausalLmImpl::forward.
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      forward;
  // forward of rows that hold several documents (documents.h): input_ids, document_ids, attention_mask, position_ids ->
  // logits. Empty for an exported program, which has the inputs that it was exported with.
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           const std::optional<at::Tensor>&)>
      packed = {};
  // Set if the model computes a loss itself (an exported program with labels, whose targets may be unshifted and whose
  // loss may have auxiliary terms): input_ids, labels, attention_mask, position_ids -> logits, loss. Empty: the loss is
  // CausalLmLoss of the logits that `forward` returns.
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                  const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      own_loss = {};
  // Set for an exported program: input_ids, labels, attention_mask, position_ids -> every output of the program, also
  // those that `forward` and `own_loss` leave out. An input of labels gets `labels`. Empty for a reference model.
  std::function<ProgramOutputs(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                               const std::optional<at::Tensor>&)>
      outputs = {};
  // The model without its head: input_ids, document_ids -> the last hidden states [B, T, H]. Empty for an exported
  // program.
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&)> hidden;
  // How the parameters are computed from the tensors of a checkpoint (NameRules::recipes); empty: each parameter is one
  // tensor of the checkpoint.
  WeightRecipes recipes = {};
  // The path of the module that computes the logits of a reference model, "lm_head". Empty for an exported program,
  // whose graph tells how its logits leave (logits.h).
  std::string head_path = {};
  // The Linear that computes the logits from the hidden states, owned by `module`; nullptr if the logits are computed
  // in another way.
  const nn::LinearImpl* head = nullptr;
  // The longest sequence of a call with the short frequencies of longrope (documents.h); nullopt: no layer of the model
  // has longrope, or it is an exported program.
  std::optional<int64_t> short_length = std::nullopt;
  // The losses of the routers, which `forward` and `hidden` count; a training loop adds them to the loss of the labels,
  // as transformers does with output_router_logits. nullptr: a model without experts, or an exported program.
  std::shared_ptr<RouterLosses> routers = nullptr;
};

// Returns the classes of Hugging Face that have a reference model, sorted.
std::vector<std::string> ReferenceArchitectures();

// Reads a config.json with the reader of its architecture: the first name in "architectures", else the architecture of
// its model_type. `file_name` names the config in errors. Errors: kUnsupportedModel, one for each field that is
// missing, of the wrong kind, out of range or not supported.
Result<DecoderSpec> ReadDecoderSpec(const JsonValue& config, const std::string& file_name = "config.json");

// Returns the reference model for a config.json. Errors: those of ReadDecoderSpec.
Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name = "config.json");

// Returns an exported program as a CausalLm. `forward` passes each argument to the program input of the same kind,
// passes the ids to an input of labels, and returns only the logits. If the program has no input for a mask or
// positions, a mask must have no padding and positions must count from 0; calls with other values throw PlanError
// (kBadInput). Errors (kNotSupported): IsCausalLm is false.
Result<CausalLm> CausalLmOfProgram(const std::shared_ptr<Program>& program);

// Mean cross entropy of predicting token t+1 from t: a scalar, in float32, or in float64 for logits in float64. logits
// [B, T, V], labels int64 [B, T]; labels of -100 are ignored. NaN if all labels are ignored. In float32 it is the loss
// of transformers, ForCausalLMLoss.
at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace moonshard
