// CausalLm: a reference model as the program uses it, made from a config.json. Before: the file, read by ParseJson. After:
// apply/ and loading. Inside nn::DeferInit its parameters have no storage.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/models/decoder.h"

namespace moonshard {

// Any architecture, one way to call it.
struct CausalLm {
  std::string architecture;
  std::shared_ptr<torch::nn::Module> module;
  // input_ids, attention_mask, position_ids -> logits, as DecoderForCausalLmImpl::forward.
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      forward;
  // The same up to the head: input_ids -> the last hidden states [B, T, H].
  std::function<at::Tensor(const at::Tensor&)> hidden;
  // What makes logits of them; nullptr where that is more than a Linear. The module's own.
  const nn::LinearImpl* head = nullptr;
};

// The classes of Hugging Face that have a reference model, sorted.
std::vector<std::string> ReferenceArchitectures();

// What a config.json says, read by its architecture: the first of "architectures", else what model_type stands for.
// `file_name` is what errors call the config. Errors: kUnsupportedModel, one for each field that is missing, of the wrong
// kind, out of range or not computed here.
Result<DecoderSpec> ReadDecoderSpec(const JsonValue& config, const std::string& file_name = "config.json");

// The reference model for a config.json. Errors as ReadDecoderSpec.
Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name = "config.json");

// Mean cross entropy of predicting token t+1 from t, float32 scalar. logits [B, T, V], labels int64 [B, T]; labels of
// -100 count nothing. NaN where no label counts. As transformers' ForCausalLMLoss.
at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace moonshard
