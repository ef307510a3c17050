#include "dsl/commands/train/loss.h"

#include <algorithm>
#include <vector>

#include "engine/plan/compile/context_parallel.h"

namespace moonshard {
namespace {

constexpr int64_t kIgnored = -100;  // a target that does not count

Diagnostic BadLoss(const std::string& message, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, message);
  d.path = "--loss";
  d.required = required;
  return d;
}

// The graph may not tell the layout of the logits: their shape does.
void CheckFull(const ProgramOutputs& outputs) {
  if (!outputs.Has("logits")) return;
  const size_t at = static_cast<size_t>(std::ranges::find(outputs.names(), "logits") - outputs.names().begin());
  const std::optional<std::vector<int64_t>>& full = outputs.full_shapes()[at];
  if (!full || outputs["logits"].sizes().equals(*full)) return;
  throw PlanError({BadLoss("the model's own loss was computed from sharded logits",
                           "a plan that gathers the logits: output = replicate at the head")});
}

// Sizes are checked by the program.
NamedTensors InTypes(const Program& program, const NamedTensors& tensors) {
  NamedTensors out;
  for (const ProgramInput& input : program.inputs()) {
    const auto found = tensors.find(input.name);
    if (found != tensors.end()) out[input.name] = found->second.to(TypeOfInput(input));
  }
  return out;
}

Diagnostic NotInChunks(const CausalLm& net, const std::string& message, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, message);
  d.path = net.head_path.empty() ? "logits" : net.head_path;
  d.declared = "--loss-chunk";
  d.required = required;
  return d;
}

// The vocabulary dim of the head's weight, whose rule may gather the logits.
Result<Vocabulary> VocabularyOfWeight(const CausalLm& net, const AppliedPlan& model) {
  if (net.head == nullptr)
    return NotInChunks(net, "the logits of this model are not the output of a single Linear", "no --loss-chunk");
  const auto adapts = [&](const auto& adapted) { return adapted.first == net.head_path; };
  if (std::ranges::any_of(model.plan().adapted, adapts)) {
    return NotInChunks(net,
                       "--loss-chunk computes the logits from the head's weight alone, and the head has an adapter",
                       "no adapter of the head, or no --loss-chunk");
  }
  const auto weight = std::ranges::find_if(model.parameters(),
                                           [&](const LiveParameter& p) { return p.tensor.is_same(net.head->weight); });
  for (const ShardedUnit& unit : model.plan().units) {
    if (unit.path.empty() || std::ranges::find(unit.params, weight->ref) == unit.params.end()) continue;
    return NotInChunks(net,
                       "--loss-chunk needs the head's full weight, but fsdp unit '" + unit.path +
                           "' gathers this weight only while the unit runs",
                       "a head in the root unit of fsdp, whose weights are full while the loss is computed");
  }
  const Layout& cut = weight->placement[MeshAxis::kTp];
  const bool in_shards = cut == Layout::Shard(0) && model.plan().mesh.size(MeshAxis::kTp) > 1;
  if (!in_shards && cut.is_shard() && model.plan().mesh.size(MeshAxis::kTp) > 1) {
    return NotInChunks(net, "the head's weight has layout " + cut.ToText(), "shard(0), or replicate");
  }
  auto group =
      in_shards ? AxisGroup::Make(model.mesh(), MeshAxis::kTp) : AxisGroup::MakeSub(model.mesh(), MeshAxis::kTp, 1);
  return Vocabulary::Make(std::move(group), weight->shape[0]);
}

// How the hidden states arrive at the head.
Layout HiddenLayout(const CausalLm& net, const AppliedPlan& model) {
  const ModuleLayouts& layouts = model.plan().LayoutsOf(static_cast<size_t>(model.plan().tree->Find(net.head_path)));
  if (layouts.inputs.empty() || !layouts.inputs[0]) return Layout::Replicate();
  return layouts.inputs[0]->from[MeshAxis::kTp];
}

Result<Vocabulary> VocabularyOfLogits(const CausalLm& net, const AppliedPlan& model) {
  const Logits logits = LogitsOf(net, model.plan());
  return VocabularyOf(model, logits.layout, logits.vocabulary, net.head_path.empty() ? "logits" : net.head_path);
}

// The ranks of cp, if a rank has the logits of its own tokens alone: where the plan leaves them so, and where the loss
// makes them of the hidden states. Otherwise without a group.
TokenShards SequenceOf(const CausalLm& net, const AppliedPlan& model, int64_t chunk) {
  return chunk > 0 || LogitsOf(net, model.plan()).sequence.is_shard() ? TokenShards::Of(model) : TokenShards();
}

}  // namespace

Result<BatchLoss> BatchLoss::NextTokens(const CausalLm& net, const AppliedPlan& model, int64_t chunk) {
  Diagnostics diagnostics;
  std::optional<Vocabulary> vocabulary =
      (chunk > 0 ? VocabularyOfWeight(net, model) : VocabularyOfLogits(net, model)).Collect(diagnostics);
  if (!vocabulary) return diagnostics;
  return BatchLoss(net, std::move(vocabulary), {chunk, chunk > 0 ? HiddenLayout(net, model) : Layout::Replicate()},
                   nullptr, SequenceOf(net, model, chunk),
                   HasOwnInputs(model.plan()) ? TokenShards::Of(model) : TokenShards());
}

Result<BatchLoss> BatchLoss::OfModel(const CausalLm& net, const AppliedPlan& model) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the model does not compute a loss itself");
  d.path = "--loss";
  if (!net.own_loss) {
    d.required = "a program that was exported with its labels, as in --inputs input_ids labels; or --loss next-tokens";
    return d;
  }
  const Logits logits = LogitsOf(net, model.plan());
  const Layout& layout = logits.sequence.is_shard() ? logits.sequence : logits.layout;
  if (layout != Layout::Replicate()) {
    d.message = "the model's own loss cannot be computed from logits that leave as " + layout.ToText();
    d.required = "a plan that gathers the logits: output = replicate at the head; or --loss next-tokens";
    return d;
  }
  return BatchLoss(net, std::nullopt, {});
}

Result<BatchLoss> BatchLoss::OfExamples(const CausalLm& net, const AppliedPlan& model) {
  const auto program = std::dynamic_pointer_cast<Program>(net.module);
  const std::vector<ProgramOutput>& outputs = program->exported().outputs;
  if (std::ranges::find(outputs, "loss", &ProgramOutput::name) == outputs.end()) {
    Diagnostic d = BadLoss("the program does not compute a loss, and examples are trained with the program's own loss",
                           "a program that was exported with its labels, as in --inputs input_ids labels");
    d.declared = program->exported().file;
    return d;
  }
  const auto logits = std::ranges::find(outputs, "logits", &ProgramOutput::name);
  if (logits != outputs.end()) {
    for (const MeshAxis axis : {MeshAxis::kTp, MeshAxis::kCp}) {
      const std::optional<Layout> layout =
          program->OutputLayouts(model.plan(), axis)[static_cast<size_t>(logits - outputs.begin())];
      if (!layout || *layout == Layout::Replicate()) continue;
      return BadLoss("the model's own loss cannot be computed from logits that leave as " + layout->ToText(),
                     "a plan that gathers the logits: output = replicate at the head");
    }
  }
  return BatchLoss(net, std::nullopt, {}, program);
}

Diagnostics BatchLoss::Check(const Batch& batch) const {
  if (by_name_ == nullptr) return {};
  try {
    const auto shapes = by_name_->CheckCall(InTypes(*by_name_, batch.tensors));
    if (std::optional<Diagnostic> error = CheckLabelSizes(*by_name_, batch.tensors, *shapes))
      return {*std::move(error)};
  } catch (const PlanError& error) {
    return error.diagnostics();
  }
  return {};
}

at::Tensor BatchLoss::Loss(const Batch& batch, LossReduction reduction) const {
  if (!vocabulary_) {
    const ProgramOutputs outputs =
        by_name_ != nullptr
            ? by_name_->forward(InTypes(*by_name_, batch.tensors))
            : net_.outputs(batch["ids"], batch["ids"].masked_fill(batch["targets"] == kIgnored, kIgnored), {}, {});
    CheckFull(outputs);
    const at::Tensor& mean = outputs["loss"];
    if (mean.numel() != 1 || !at::isFloatingType(mean.scalar_type())) {
      throw PlanError({BadLoss("the program's loss has " + std::to_string(mean.numel()) + " elements of type " +
                                   c10::toString(mean.scalar_type()),
                               "a loss that is one floating-point number")});
    }
    return reduction == LossReduction::kMean ? mean.sum() : mean.sum() * batch.counted;
  }
  const auto cross_entropy = [&](const ShardedLogits& logits) {
    const at::Tensor targets = batch.OnHost("targets");
    return sequence_.group ? CrossEntropy(*vocabulary_, sequence_, logits, targets, {.reduction = reduction})
                           : CrossEntropy(*vocabulary_, logits, targets, {.reduction = reduction});
  };
  const auto inputs = [&](const at::Tensor& full) { return own_inputs_.Take(full); };
  const auto documents = batch.tensors.find("documents");
  const bool packed = documents != batch.tensors.end();
  // With chunks the head is not called: the loss multiplies by its weight, a chunk of tokens at a time, so that the
  // logits of all tokens never exist together. The model is then used without its own forward, so CallAsModel begins
  // and ends a call of it for the hooks of the plan.
  if (head_.chunk == 0) {
    return cross_entropy(packed ? net_.packed(inputs(batch["ids"]), inputs(documents->second), {}, {})
                                : net_.forward(inputs(batch["ids"]), {}, {}));
  }
  return CallAsModel(*net_.module, inputs(batch["ids"]), [&](const at::Tensor& ids) {
    const at::Tensor hidden = net_.hidden(ids, packed ? std::optional(inputs(documents->second)) : std::nullopt);
    // The product is made in the weight's type: float32 under autocast too.
    const at::Tensor& weight = net_.head->weight;
    return cross_entropy(
        ShardedLogits::OfHead(*vocabulary_, hidden.to(weight.scalar_type()), weight, net_.head->bias, head_));
  });
}

at::Tensor BatchLoss::Mean(const Batch& batch) const { return Loss(batch, LossReduction::kMean); }

std::pair<double, int64_t> BatchLoss::Sum(const Batch& batch) const {
  // A rank without counted labels runs the model all the same: other ranks wait for it in collectives.
  const double sum = Loss(batch, LossReduction::kSum).item<double>();
  return {batch.counted == 0 ? 0 : sum, batch.counted};
}

CollectiveCounts BatchLoss::counts() const {
  std::vector<CollectiveCounts> parts;
  if (vocabulary_) parts.push_back(vocabulary_->group().counts());
  if (sequence_.group) parts.push_back(sequence_.group->counts());
  if (net_.routers) parts.push_back(net_.routers->counts());
  CollectiveCounts out;
  for (const CollectiveCounts& part : parts) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      for (const CollectiveKind kind : kCollectiveKinds) {
        out.of(direction, kind).count += part.of(direction, kind).count;
        out.of(direction, kind).bytes += part.of(direction, kind).bytes;
      }
    }
  }
  return out;
}

}  // namespace moonshard
