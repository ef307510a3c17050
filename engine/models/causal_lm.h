// CausalLm: a reference model as the programs use it, made from a config.json. Inside nn::DeferInit its parameters have
// no storage.
// Stage after: apply, which shards and loads it.
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

// One interface for all architectures.
struct CausalLm {
  std::string architecture;
  std::shared_ptr<torch::nn::Module> module;
  // input_ids, attention_mask, position_ids -> logits, as DecoderForCausalLmImpl::forward.
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      forward;
  // Where the model computes a loss of its own (a program's: shifted or not, with the balance of experts): input_ids,
  // labels, attention_mask, position_ids -> logits, loss. Empty: the loss is CausalLmLoss of what forward makes.
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                  const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      own_loss = {};
  // The same up to the head: input_ids -> the last hidden states [B, T, H].
  std::function<at::Tensor(const at::Tensor&)> hidden;
  // How a checkpoint's tensors make the parameters (NameRules::recipes); empty: each has its own.
  WeightRecipes recipes = {};
  // The layer that computes logits from them, owned by `module`; nullptr if that is more than a Linear.
  const nn::LinearImpl* head = nullptr;
};

// The classes of Hugging Face that have a reference model, sorted.
std::vector<std::string> ReferenceArchitectures();

// Reads a config.json by its architecture: the first of "architectures", else the one of its model_type. `file_name`
// names the config in errors. Errors: kUnsupportedModel, one for each field that is missing, of the wrong kind, out of
// range or not supported.
Result<DecoderSpec> ReadDecoderSpec(const JsonValue& config, const std::string& file_name = "config.json");

// The reference model for a config.json. Errors as ReadDecoderSpec.
Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name = "config.json");

// Whether a program is one of a causal language model: ids, and nothing else but a mask, positions and labels, make
// "logits".
bool IsCausalLm(const ExportedProgram& program);

// An exported program as a causal language model: inputs are passed by their kinds, labels as the ids, and outputs
// other than logits are dropped. A mask or positions that the program does not take must be those of the export: no
// padding, positions from 0 (PlanError, kBadInput). Errors (kNotSupported): not IsCausalLm.
Result<CausalLm> CausalLmOfProgram(const std::shared_ptr<Program>& program);

// Mean cross entropy of predicting token t+1 from t, float32 scalar. logits [B, T, V], labels int64 [B, T]; labels of
// -100 are ignored. NaN if all are. As transformers' ForCausalLMLoss.
at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace moonshard
