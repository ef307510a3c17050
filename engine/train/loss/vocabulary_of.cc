#include "engine/train/loss/vocabulary_of.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

// The layout in which the head's output leaves under the plan decides: shards of the vocabulary need the group of tp,
// full logits none. Other layouts are refused, since a rank then has no range of columns of the full logits. The size
// is that of the full weight, which no rank may hold; a head that is tied to the embedding has its weight under the
// embedding's path.
Result<Vocabulary> VocabularyOf(const AppliedPlan& model, const std::string& head, VocabularyOptions options) {
  const CompiledPlan& plan = model.plan();
  const int64_t found = plan.tree->Find(head);
  const auto owns_weight = [&](const LiveParameter& p) {
    const std::string weight = head + ".weight";
    return p.path == weight || std::ranges::count(p.aliases, weight) > 0;
  };
  const auto weight = std::ranges::find_if(model.parameters(), owns_weight);
  if (found < 0 || weight == model.parameters().end()) {
    Diagnostic d =
        MakeDiagnostic(Finding::kBadInput, "the model has no module '" + head + "' with a parameter 'weight'");
    d.required = "the path of the module that computes the logits";
    return d;
  }
  const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(found));
  const Layout sequence =
      layouts.outputs.empty() || !layouts.outputs[0] ? Layout::Replicate() : layouts.outputs[0]->to[MeshAxis::kCp];
  if (plan.context_parallel && sequence.is_shard()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "each rank of cp has the logits of its own tokens, which a loss of all targets does "
                                  "not take");
    d.path = head;
    d.declared = sequence.ToText() + " on cp";
    d.required =
        "logits that are gathered over cp; or the vocabulary of the layout on tp, and the loss of "
        "engine/train/loss/sequence_loss.h";
    return d;
  }
  const Layout left =
      layouts.outputs.empty() || !layouts.outputs[0] ? Layout::Replicate() : layouts.outputs[0]->to[MeshAxis::kTp];
  return VocabularyOf(model, left, weight->shape[0], head, std::move(options));
}

Result<Vocabulary> VocabularyOf(const AppliedPlan& model, const Layout& logits, int64_t size, const std::string& path,
                                VocabularyOptions options) {
  const int64_t ranks = model.plan().mesh.size(MeshAxis::kTp);
  const bool in_shards = ranks > 1 && (logits == Layout::Shard(-1) || logits == Layout::Shard(2));
  if (ranks > 1 && !in_shards && logits != Layout::Replicate()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "the losses do not support the layout of the logits that '" + path + "' outputs");
    d.path = path;
    d.declared = logits.ToText();
    d.required = "shard(-1), or replicate";
    return d;
  }
  // In a group of one the losses communicate nothing.
  auto group =
      in_shards ? AxisGroup::Make(model.mesh(), MeshAxis::kTp) : AxisGroup::MakeSub(model.mesh(), MeshAxis::kTp, 1);
  return Vocabulary::Make(std::move(group), size, std::move(options));
}

}  // namespace moonshard
