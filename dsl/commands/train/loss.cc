#include "dsl/commands/train/loss.h"

#include <algorithm>

namespace moonshard {
namespace {

constexpr const char* kHead = "lm_head";

Diagnostic NotInChunks(const std::string& message, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, message);
  d.path = kHead;
  d.declared = "--loss-chunk";
  d.required = required;
  return d;
}

// The vocabulary dim of the head's weight, whose rule may gather the logits.
Result<Vocabulary> VocabularyOfWeight(const CausalLm& net, const AppliedPlan& model) {
  if (net.head == nullptr)
    return NotInChunks("the logits of this model are not the output of a single Linear", "no --loss-chunk");
  const auto weight = std::ranges::find_if(model.parameters(),
                                           [&](const LiveParameter& p) { return p.tensor.is_same(net.head->weight); });
  for (const ShardedUnit& unit : model.plan().units) {
    if (unit.path.empty() || std::ranges::find(unit.params, weight->ref) == unit.params.end()) continue;
    return NotInChunks("--loss-chunk needs the head's full weight, but fsdp unit '" + unit.path +
                           "' gathers this weight only while the unit runs",
                       "a head in the root unit of fsdp, whose weights are full while the loss is computed");
  }
  const Layout& cut = weight->placement[MeshAxis::kTp];
  const bool in_shards = cut == Layout::Shard(0) && model.plan().mesh.size(MeshAxis::kTp) > 1;
  if (!in_shards && cut.is_shard() && model.plan().mesh.size(MeshAxis::kTp) > 1) {
    return NotInChunks("the head's weight has layout " + cut.ToText(), "shard(0), or replicate");
  }
  auto group =
      in_shards ? AxisGroup::Make(model.mesh(), MeshAxis::kTp) : AxisGroup::MakeSub(model.mesh(), MeshAxis::kTp, 1);
  return Vocabulary::Make(std::move(group), weight->shape[0]);
}

// How the hidden states arrive at the head.
Layout HiddenLayout(const AppliedPlan& model) {
  const ModuleLayouts& layouts = model.plan().LayoutsOf(static_cast<size_t>(model.plan().tree->Find(kHead)));
  if (layouts.inputs.empty() || !layouts.inputs[0]) return Layout::Replicate();
  return layouts.inputs[0]->from[MeshAxis::kTp];
}

}  // namespace

Result<NextTokenLoss> NextTokenLoss::Make(const CausalLm& net, const AppliedPlan& model, int64_t chunk) {
  Diagnostics diagnostics;
  std::optional<Vocabulary> vocabulary =
      (chunk > 0 ? VocabularyOfWeight(net, model) : VocabularyOf(model, kHead)).Collect(diagnostics);
  if (!vocabulary) return diagnostics;
  return NextTokenLoss(net, std::move(*vocabulary), {chunk, chunk > 0 ? HiddenLayout(model) : Layout::Replicate()});
}

at::Tensor NextTokenLoss::Loss(const Batch& batch, LossReduction reduction) const {
  // With chunks the head is not called: the loss multiplies by its weight, a chunk of tokens at a time, so that the
  // logits of all tokens never exist together. The model is then used without its own forward, so CallAsModel begins
  // and ends a call of it for the hooks of the plan.
  if (head_.chunk == 0) {
    return CrossEntropy(vocabulary_, net_.forward(batch.ids, {}, {}), batch.targets, {.reduction = reduction});
  }
  return CallAsModel(*net_.module, batch.ids, [&](const at::Tensor& ids) {
    const at::Tensor hidden = net_.hidden(ids);
    // The product is made in the weight's type: float32 under autocast too.
    const at::Tensor& weight = net_.head->weight;
    return CrossEntropy(
        vocabulary_,
        ShardedLogits::OfHead(vocabulary_, hidden.to(weight.scalar_type()), weight, net_.head->bias, head_),
        batch.targets, {.reduction = reduction});
  });
}

at::Tensor NextTokenLoss::Mean(const Batch& batch) const { return Loss(batch, LossReduction::kMean); }

std::pair<double, int64_t> NextTokenLoss::Sum(const Batch& batch) const {
  const int64_t targets = batch.targets.ne(-100).sum().item<int64_t>();
  return {Loss(batch, LossReduction::kSum).item<double>(), targets};
}

}  // namespace moonshard
