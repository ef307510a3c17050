#include "engine/models/causal_lm.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "engine/core/base/text.h"
#include "engine/models/architecture.h"
#include "engine/models/config_reader.h"
#include "engine/models/moe.h"

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

// The losses of the routers in the model, to which its blocks of experts add their rows; null without experts.
std::shared_ptr<RouterLosses> WatchRouters(torch::nn::Module& model) {
  std::shared_ptr<RouterLosses> losses;
  for (const auto& entry : model.named_modules()) {
    auto* block = dynamic_cast<SparseMoeImpl*>(entry.value().get());
    if (block == nullptr) continue;
    if (!losses) losses = std::make_shared<RouterLosses>(block->options().experts, block->options().losses);
    block->SetLosses(losses, entry.key());
  }
  return losses;
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
    fields.Refuse("", std::string("the config has the JSON type ") + config.KindName(), "an object");
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
  fields.Refuse("architectures", "architecture '" + name + "' has no reference implementation in moonshard",
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
  made.routers = WatchRouters(*made.module);
  for (const AttentionKind& kind : spec->config.kinds) {
    const std::optional<int64_t> length = Rotary(kind.rope).short_length();
    if (length) made.short_length = std::min(*length, made.short_length.value_or(*length));
  }
  auto all = [model, routers = made.routers](
                 const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                 const std::optional<at::Tensor>& position_ids, const std::optional<at::Tensor>& document_ids) mutable {
    const auto run = [&] { return model(input_ids, attention_mask, position_ids, document_ids); };
    return routers ? routers->Run(input_ids, attention_mask, run) : run();
  };
  made.forward = [all](const at::Tensor& input_ids, const std::optional<at::Tensor>& attention_mask,
                       const std::optional<at::Tensor>& position_ids) mutable {
    return all(input_ids, attention_mask, position_ids, std::nullopt);
  };
  made.packed = [all](const at::Tensor& input_ids, const at::Tensor& document_ids,
                      const std::optional<at::Tensor>& attention_mask,
                      const std::optional<at::Tensor>& position_ids) mutable {
    return all(input_ids, attention_mask, position_ids, document_ids);
  };
  // The head is left out during this call only, also if it throws.
  made.hidden = [model, routers = made.routers](const at::Tensor& input_ids,
                                                const std::optional<at::Tensor>& document_ids) mutable {
    struct Headless {
      explicit Headless(DecoderForCausalLmImpl& impl) : impl(impl) { impl.LeaveOutHead(true); }
      ~Headless() { impl.LeaveOutHead(false); }
      Headless(const Headless&) = delete;
      Headless& operator=(const Headless&) = delete;
      DecoderForCausalLmImpl& impl;
    };
    const Headless scope(*model);
    const auto run = [&] { return model(input_ids, std::nullopt, std::nullopt, document_ids); };
    return routers ? routers->Run(input_ids, std::nullopt, run) : run();
  };
  made.head_path = "lm_head";
  made.head = model->head();
  return {std::move(made), std::move(diagnostics)};
}

namespace {

Diagnostic NotTaken(const Program& program, const std::string& name, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "the program has no input '" + name + "'");
  d.path = program.exported().file;
  d.required = required;
  d.help = "export the model with --inputs input_ids " + name +
           " labels, or export it to a directory, which has a program for each usual set of inputs";
  return d;
}

}  // namespace

Result<CausalLm> CausalLmOfProgram(const std::shared_ptr<Program>& program) {
  if (!IsCausalLm(program->exported())) {
    std::vector<std::string> inputs;
    for (const ProgramInput& input : program->inputs()) inputs.push_back(input.name);
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the program is not a causal language model");
    d.path = program->exported().file;
    d.declared = "a program with the inputs " + Join(inputs, ", ");
    d.required = "one input of token ids, at most one input each of mask, positions and labels, and an output 'logits'";
    return d;
  }
  CausalLm made;
  made.architecture = program->exported().model_class;
  made.module = program;
  made.recipes = program->recipes();
  const auto takes = [&](const char* kind) {
    return std::any_of(program->inputs().begin(), program->inputs().end(),
                       [&](const ProgramInput& input) { return input.kind == kind; });
  };
  const auto run = [program, takes_mask = takes("mask"), takes_positions = takes("positions")](
                       const at::Tensor& ids, const at::Tensor& labels, const std::optional<at::Tensor>& mask,
                       const std::optional<at::Tensor>& positions) {
    const auto counted = [&] { return at::arange(ids.size(1), ids.options()).expand_as(ids); };
    if (mask && !takes_mask && !mask->all().item<bool>()) {
      throw PlanError({NotTaken(*program, "attention_mask", "a mask without padding, or no mask")});
    }
    if (positions && !takes_positions && !positions->expand_as(ids).equal(counted())) {
      throw PlanError({NotTaken(*program, "position_ids", "positions 0, 1, 2, ... in each row, or no positions")});
    }
    std::vector<at::Tensor> given;
    for (const ProgramInput& input : program->inputs()) {
      const bool optional = input.value < 0 && !program->exported().others.empty();
      if (input.kind == "mask") {
        given.push_back(mask ? *mask : (optional ? at::Tensor() : at::ones_like(ids)));
      } else if (input.kind == "positions") {
        given.push_back(positions ? *positions : (optional ? at::Tensor() : counted()));
      } else {
        given.push_back(input.kind == "labels" ? labels : ids);
      }
    }
    return program->forward(std::move(given));
  };
  made.forward = [run](const at::Tensor& ids, const std::optional<at::Tensor>& mask,
                       const std::optional<at::Tensor>& positions) { return run(ids, ids, mask, positions)["logits"]; };
  made.outputs = run;
  const std::vector<ProgramOutput>& outputs = program->exported().outputs;
  if (takes("labels") && std::ranges::any_of(outputs, [](const auto& output) { return output.name == "loss"; })) {
    made.own_loss = [run](const at::Tensor& ids, const at::Tensor& labels, const std::optional<at::Tensor>& mask,
                          const std::optional<at::Tensor>& positions) {
      const ProgramOutputs results = run(ids, labels, mask, positions);
      return std::pair(results["logits"], results["loss"]);
    };
  }
  return made;
}

at::Tensor CausalLmLoss(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr int64_t kIgnored = -100;
  const int64_t length = logits.size(1);
  const at::ScalarType type = c10::promoteTypes(logits.scalar_type(), at::kFloat);
  const at::Tensor predicted = logits.narrow(1, 0, length - 1).to(type).reshape({-1, logits.size(2)});
  const at::Tensor wanted = labels.narrow(1, 1, length - 1).reshape({-1}).to(predicted.device());
  return at::cross_entropy_loss(predicted, wanted, /*weight=*/{}, at::Reduction::Mean, kIgnored);
}

}  // namespace moonshard
