#include "engine/models/causal_lm.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "engine/core/base/text.h"
#include "engine/models/architecture.h"
#include "engine/models/config_reader.h"

namespace moonshard {
namespace {

// What a config calls its architecture: the first of `architectures`, else its model_type.
std::pair<std::string, bool> NameIn(const JsonValue& config) {
  const JsonValue* list = config.Find("architectures");
  if (list != nullptr && list->is_array() && !list->AsArray().empty() && list->AsArray()[0].is_string()) {
    return {list->AsArray()[0].AsString(), true};
  }
  const JsonValue* type = config.Find("model_type");
  return {type != nullptr && type->is_string() ? type->AsString() : std::string(), false};
}

}  // namespace

std::vector<std::string> ReferenceArchitectures() {
  std::vector<std::string> names;
  for (const Architecture& one : AllArchitectures()) names.insert(names.end(), one.names.begin(), one.names.end());
  std::sort(names.begin(), names.end());
  return names;
}

Result<DecoderSpec> ReadDecoderSpec(const JsonValue& config, const std::string& file_name) {
  Diagnostics diagnostics;
  ConfigReader fields(config, file_name, "", diagnostics);
  if (!config.is_object()) {
    fields.Refuse("", std::string("the config is of kind ") + config.KindName(), "an object");
    return diagnostics;
  }
  const auto [name, is_class] = NameIn(config);
  for (const Architecture& one : AllArchitectures()) {
    const bool named = std::find(one.names.begin(), one.names.end(), name) != one.names.end();
    if (is_class ? !named : one.model_type != name) continue;
    const std::string& architecture = named ? name : one.names.front();
    DecoderSpec spec = one.read(fields, architecture);
    spec.config.architecture = architecture;
    fields.NameUnread(spec.config.architecture, NeutralFields(), MeaningfulFields());
    return {std::move(spec), std::move(diagnostics)};
  }
  fields.Refuse("architectures", "architecture '" + name + "' has no reference implementation here",
                Join(ReferenceArchitectures(), " or "));
  return diagnostics;
}

Result<CausalLm> MakeCausalLm(const JsonValue& config, const std::string& file_name) {
  Diagnostics diagnostics;
  const std::optional<DecoderSpec> spec = ReadDecoderSpec(config, file_name).Collect(diagnostics);
  if (!spec) return diagnostics;
  DecoderForCausalLm model(*spec);
  CausalLm made;
  made.architecture = spec->config.architecture;
  made.module = model.ptr();
  made.forward = [model](const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                         const std::optional<at::Tensor>& position_ids) mutable {
    return model(input_ids, attention_mask, position_ids);
  };
  // The head is left out during this call only, also if it throws.
  made.hidden = [model](const at::Tensor& input_ids) mutable {
    struct Headless {
      explicit Headless(DecoderForCausalLmImpl& impl) : impl(impl) { impl.LeaveOutHead(true); }
      ~Headless() { impl.LeaveOutHead(false); }
      Headless(const Headless&) = delete;
      Headless& operator=(const Headless&) = delete;
      DecoderForCausalLmImpl& impl;
    };
    const Headless scope(*model);
    return model(input_ids);
  };
  made.head = model->head();
  return {std::move(made), std::move(diagnostics)};
}

at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr int64_t kIgnored = -100;
  const int64_t length = logits.size(1);
  const at::Tensor predicted = logits.narrow(1, 0, length - 1).to(at::kFloat).reshape({-1, logits.size(2)});
  const at::Tensor wanted = labels.narrow(1, 1, length - 1).reshape({-1}).to(predicted.device());
  return at::cross_entropy_loss(predicted, wanted, /*weight=*/{}, at::Reduction::Mean, kIgnored);
}

}  // namespace moonshard
