#include "engine/analysis/prove/proof.h"

#include <array>

#include "engine/core/base/text.h"
#include "engine/core/findings/forms.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

constexpr const char* kProofFormatVersion = "1.0";

JsonValue::Array StringsJson(const std::vector<std::string>& texts) {
  JsonValue::Array out;
  for (const std::string& text : texts) out.emplace_back(text);
  return out;
}

JsonValue::Object ScopeJson(const Proof& proof) {
  JsonValue::Object mesh;
  for (const auto& [axis, size] : proof.scope.mesh.Sizes()) mesh[axis] = size;
  JsonValue::Array ranks;
  for (int64_t rank : proof.scope.ranks) ranks.emplace_back(rank);
  return {{"mesh", std::move(mesh)},      {"ranks", std::move(ranks)},      {"inputs", StringsJson(proof.scope.inputs)},
          {"operators", proof.operators}, {"modules", proof.scope.modules}, {"backward", proof.scope.backward},
          {"loss", proof.loss_checked}};
}

}  // namespace

std::string_view ToString(Assumption::Kind kind) {
  constexpr std::array<std::string_view, 12> kNames = {"constants",   "regions", "axes",       "numbers",
                                                       "value_sizes", "slices",  "backwards",  "experts",
                                                       "own_rows",    "random",  "loss_scale", "memory"};
  return kNames.at(static_cast<size_t>(kind));
}

std::string Assumption::ToText() const {
  const std::string n = std::to_string(count);
  switch (kind) {
    case Kind::kConstants:
      return n +
             " tensors that were not created in the step: assumed equal on all tp ranks, and on data-parallel ranks "
             "assumed to be constants or rows of the batch";
    case Kind::kRegions: return "regions with declared layouts, whose operators are not checked: " + Join(of, ", ");
    case Kind::kAxes: return "mesh axes other than tp (" + Join(of, ", ") + "): only layouts are compared, not sizes";
    case Kind::kNumbers: return "sizes and scalars that are not compared with the step at tp=1: " + Join(of, ", ");
    case Kind::kValueSizes:
      return n + " results whose sizes depend on values, such as the tokens of an expert: these sizes are not compared";
    case Kind::kSlices:
      return n + " slices outside of any module start at a different offset than at tp=1: the offsets are not compared";
    case Kind::kBackwards:
      return "the backward of " + n +
             " modules runs different operators than at tp=1 (first: " + (of.empty() ? "" : of.front()) +
             "): assumed to be the derivative of the forward, which was compared";
    case Kind::kExperts:
      return "which rows meet which in the experts of " + n + " modules (first: " + (of.empty() ? "" : of.front()) +
             "): each row is assumed to be computed by itself and by the expert of its token";
    case Kind::kOwnRows:
      return n +
             " operators mix the rows of each data-parallel rank alone, which is not what one rank computes of all "
             "rows: " +
             Join(of, ", ");
    case Kind::kRandom:
      return "random numbers: the ranks of tp begin with one seed and data-parallel ranks with others; a generator of "
             "the "
             "program has one state on all ranks of tp, and the forward sets that of none; what all rows of the batch "
             "have in common is drawn anew by each data-parallel rank";
    case Kind::kLossScale:
      return "whether the loss is a sum or a mean over the rows of the batch: taken from the caller (loss_scale)";
    case Kind::kMemory:
      return "elements that the model's code reads or writes in a tensor's memory (data_ptr, accessor), not by an "
             "operator";
  }
  return {};
}

std::string ScopeText(const Proof& proof) {
  std::vector<std::string> ranks;
  for (int64_t rank : proof.scope.ranks) ranks.push_back(std::to_string(rank));
  return std::to_string(proof.operators) + " operators of a forward" + (proof.scope.backward ? " and backward" : "") +
         " on rank " + Join(ranks, " and ") + " of " + proof.scope.mesh.ToString() + ", with " +
         (proof.scope.inputs.empty() ? "no inputs" : Join(proof.scope.inputs, ", "));
}

JsonValue ProofJson(const Proof& proof, const CompiledPlan& plan) {
  JsonValue::Array unproven;
  for (const auto& [why, entry] : proof.unproven) {
    unproven.emplace_back(JsonValue::Object{{"why", why}, {"count", entry.count}, {"first", entry.first}});
  }
  JsonValue::Array assumptions;
  for (const Assumption& assumption : proof.assumptions) {
    assumptions.emplace_back(JsonValue::Object{{"kind", ToString(assumption.kind)},
                                               {"count", assumption.count},
                                               {"of", StringsJson(assumption.of)},
                                               {"text", assumption.ToText()}});
  }
  return JsonValue::Object{{"format_version", kProofFormatVersion},
                           {"plan", plan.plan->name},
                           {"plan_hash", plan.Hash()},
                           {"proven", proof.holds()},
                           {"scope", ScopeJson(proof)},
                           {"findings", ToJson(ToDiagnostics(proof, plan))},
                           {"unproven", std::move(unproven)},
                           {"sizes_not_compared", StringsJson(proof.sizes_not_compared)},
                           {"assumptions", std::move(assumptions)}};
}

}  // namespace moonshard
