// What is said of a proof: for each fault the plan's line, what was declared and what is, and the likely suggested
// fix.
//
// A fault is about an operator, the reader's question about a line of the plan. The way from one to the other is the
// module path: the rule of the module, or of the nearest module around it whose calls have one. The fix is the rule's
// own (SuggestedFix), because only the rule knows what was missing; here it is put into the words of the plan
// language.
//
// Faults of the backward are counted and not listed while the forward has any: the backward differentiates the
// forward, so its faults mostly follow, and their operators (mm, sum) are far from what a plan's author has written.
#include <algorithm>
#include <string_view>

#include "engine/analysis/prove/proof.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {
namespace {

constexpr const char* kCompareNumbers =
    "compare the numbers of the step on real ranks: moonshard verify, or verify --ops; in C++, outputs and gradients "
    "(GatherFull) with those of one rank";

// The line of the rule that says what happens at the calls of the module at `path` or, failing that, of the nearest
// module around it. Rules that name parameters by their paths say nothing of calls, and default(...) nothing of what is
// inside a module: neither explains a fault. Not known where only such are there.
SourceSpan LineOfModule(const CompiledPlan& plan, std::string_view path) {
  const std::string_view own = path;
  for (;; path = ParentOf(path)) {
    const int64_t module = plan.tree->Find(path);
    if (module >= 0) {
      const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(module));
      const bool of_parameter = layouts.rule >= 0 && plan.plan->rules[static_cast<size_t>(layouts.rule)].parameter;
      const SourceSpan& line = SourceOf(plan, layouts);
      if (line.known() && !of_parameter && (!layouts.is_fallback || path == own)) return line;
    }
    if (path.empty()) return {};
  }
}

// Failing the module's line, that of the module that `since` names: who made the operand so.
SourceSpan LineOf(const CompiledPlan& plan, const TypeFault& fault) {
  ParamRef ref;
  if (fault.kind == TypeFault::Kind::kGradient && plan.tree->FindParameter(fault.path, &ref)) {
    return SourceOf(plan, plan.LayoutsOf(ref.module), ref.param);
  }
  SourceSpan line = LineOfModule(plan, fault.path);
  if (line.known() || fault.since.empty()) return line;
  if (fault.since.find(ModuleName("")) != std::string::npos) return LineOfModule(plan, "");
  const size_t quote = fault.since.find('\'');
  if (quote == std::string::npos) return line;
  return LineOfModule(plan, fault.since.substr(quote + 1, fault.since.find('\'', quote + 1) - quote - 1));
}

std::string Alike(const TypeFault& fault) {
  return fault.count == 1 ? "" : " (and " + std::to_string(fault.count - 1) + " more like this)";
}

std::string In(const TypeFault& fault) {
  const std::string where =
      fault.path.empty() ? "in the model itself, or outside of it" : "in " + ModuleName(fault.path);
  return where + (fault.backward ? ", backward" : ", forward");
}

std::string Since(const TypeFault& fault) {
  if (fault.since.empty()) return "";
  const bool of_operator = fault.kind == TypeFault::Kind::kOperator || fault.kind == TypeFault::Kind::kThrew;
  return (of_operator ? "the layout of an operand comes from " : "the layout comes from ") + fault.since;
}

// Whether the operand comes from another operator of the forward that failed.
bool MadeInside(const TypeFault& fault) {
  return fault.kind == TypeFault::Kind::kOperator && fault.since.starts_with("aten::") &&
         fault.since.ends_with(" in " + ModuleName(fault.path));
}

std::string HelpOf(const TypeFault& fault) {
  std::string since = Since(fault);
  switch (fault.suggested_fix) {
    case SuggestedFix::kUnknown: return since;
    case SuggestedFix::kMakeSum:
      if (IsDataAxis(fault.axis) && !fault.backward) {
        return since + (since.empty() ? "" : "; ") +
               "it is a sum over the rows of this data-parallel rank: compute from the sum over the rows of all ranks, "
               "or make the loss a sum or a mean over rows";
      }
      // A boundary redistributes what leaves a module, not what its forward computes on the way.
      if (MadeInside(fault) && !fault.backward) {
        return since +
               ", in the same forward: compute the partial tensor in a module of its own, whose rule reduces it "
               "(outputs = {{ partial, replicate }}), or reduce it in the forward (AllReduce in axis_group.h)";
      }
      return since + (since.empty() ? "" : "; ") +
             (fault.backward ? "the gradient is partial; at the input of the module that uses the tensor of this "
                               "gradient, declare the tensor shared: inputs = {{ replicate, shared }}"
                             : "reduce the partial tensor at the output of the module that computes the tensor: "
                               "outputs = {{ partial, replicate }}");
    case SuggestedFix::kAddBiasAfter:
      return "keep the bias out of the forward and add the bias once, after the reduction: after = { \"bias\" }";
    case SuggestedFix::kTakeShard:
      return "shard the replicated tensor at the input of the module (inputs = {{ replicate, shard(d) }}), or "
             "all-gather the sharded tensor";
    case SuggestedFix::kShare:
      return "declare the replicated tensor shared: at the input of the module (inputs = {{ replicate, shared }}), or "
             "in params if the tensor is a parameter";
    case SuggestedFix::kGather:
      return since + (since.empty() ? "" : "; ") +
             "gather the sharded tensor at the output of the module that computes the tensor: outputs = {{ shard(d), "
             "replicate }}";
  }
  return since;
}

Diagnostic OfOperator(const TypeFault& fault) {
  Diagnostic d = MakeDiagnostic(Finding::kIllTyped, fault.what + " " + In(fault) + ": " + fault.message + Alike(fault));
  d.help = HelpOf(fault);
  if (fault.kind == TypeFault::Kind::kThrew) {
    // Whoever made the shards is known, which of the sizes was meant is not.
    if (!d.help.empty())
      d.help +=
          "; change the outputs of this module, or the layouts of the other operands, to the layouts that the forward "
          "expects in the failing operator";
    return d;
  }
  d.required = "operands with layouts that the rule of the operator allows";
  return d;
}

Diagnostic OfBoundary(const TypeFault& fault) {
  const bool input = fault.what.starts_with("input");
  Diagnostic d =
      MakeDiagnostic(Finding::kLayoutNotAsDeclared, fault.what + " of " + ModuleName(fault.path) + " is " + fault.got +
                                                        ", but the plan declares " + fault.declared + Alike(fault));
  d.declared = fault.declared;
  d.required = fault.got;
  d.help = Since(fault);
  if (!d.help.empty()) d.help += "; ";
  d.help += input ? "declare the layout that this input has, or change the output of the module that computes the input"
                  : "declare a pair in outputs, the layout that the forward returns and the layout after the "
                    "redistribution, such as outputs = {{ partial, replicate }}";
  return d;
}

// A region is not of the plan: it requires a layout, and the tensor has the one that the plan gave it.
Diagnostic OfRegion(const TypeFault& fault) {
  Diagnostic d =
      MakeDiagnostic(Finding::kLayoutNotAsDeclared,
                     (fault.what == "the loss" ? fault.what : "the input of '" + fault.what + "' " + In(fault) + ",") +
                         " is " + fault.got + ", but must be " + fault.declared + Alike(fault));
  d.declared = fault.got;
  d.required = fault.declared;
  d.help = Since(fault);
  if (fault.what == "the loss") d.help = "compute the loss from replicated values, or with a vocabulary-parallel loss";
  if (fault.what == "the sum of gradients" && IsDataAxis(fault.axis)) {
    d.help =
        "the gradients of data-parallel ranks are those of their own rows, and this one does not follow any: declare "
        "the tensors of the batch (TypeScope::Input) before operators use them";
  } else if (fault.what == "the sum of gradients") {
    d.help =
        "only a partial gradient may be summed over the ranks; if the gradient of the parameter is replicated, declare "
        "the parameter replicate, not shared";
  }
  return d;
}

Diagnostic OfSize(const TypeFault& fault) {
  Diagnostic d =
      MakeDiagnostic(Finding::kSizeNotScaled, fault.what + " " + In(fault) + ": " + fault.message + Alike(fault));
  d.declared = fault.got;
  d.required = fault.declared + ", as at " + ToString(fault.axis) + "=1";
  d.help =
      "if the forward uses the size of a shard where it needs the full size (y / y.size(-1)), take the number from the "
      "config; if it uses a full size to reshape a shard (the number of heads in the config), pass -1 for that dim";
  return d;
}

Diagnostic OfGradient(const TypeFault& fault) {
  Diagnostic d =
      MakeDiagnostic(Finding::kWrongGradient, "the gradient of '" + fault.path + "' is " + fault.got +
                                                  ", but the parameter is declared " + fault.declared + Alike(fault));
  d.declared = fault.declared;
  d.required = fault.got == "partial" ? "shared" : fault.got;
  if (fault.axis == MeshAxis::kEp && fault.declared.starts_with("shard"))
    d.required = "the gradient of the rank's own experts, which is complete and not summed over ep";
  d.help = Since(fault);
  if (fault.got.starts_with("partial")) {
    if (!d.help.empty()) d.help += "; ";
    d.help += "nothing reduces the gradient over the ranks; declare the parameter shared";
  }
  return d;
}

// How the plan reduces gradients is a key of its section.
Diagnostic OfScale(const TypeFault& fault, const DataParallel& section) {
  const auto key = [](std::string_view how) { return "gradients = \"" + std::string(how) + "\""; };
  const bool mean = fault.declared == "mean";
  Diagnostic d = MakeDiagnostic(Finding::kWrongGradient, "the loss is " + fault.got + ", and " + section.name() + " " +
                                                             (mean ? "averages" : "sums") +
                                                             " the gradients over the ranks: " + fault.message);
  d.declared = key(fault.declared);
  d.required = key(mean ? "sum" : "mean");
  d.help = mean ? "declare " + d.required + " in " + section.name() + ", or compute the loss as a mean over the rows"
                : "declare " + d.required + " in " + section.name() + ", or compute the loss as a sum over the rows";
  return d;
}

}  // namespace

Diagnostics ToDiagnostics(const Proof& proof, const CompiledPlan& plan) {
  Diagnostics out;
  // What is wrong in the forward is wrong in the backward too.
  const bool forward = std::ranges::any_of(proof.faults, [](const TypeFault& fault) { return !fault.backward; });
  int64_t backward = 0;
  for (const TypeFault& fault : proof.faults) {
    if (forward && fault.backward) {
      ++backward;
      continue;
    }
    Diagnostic d;
    switch (fault.kind) {
      case TypeFault::Kind::kThrew:
      case TypeFault::Kind::kOperator: d = OfOperator(fault); break;
      case TypeFault::Kind::kBoundary: d = OfBoundary(fault); break;
      case TypeFault::Kind::kRegion: d = OfRegion(fault); break;
      case TypeFault::Kind::kGradient: d = OfGradient(fault); break;
      case TypeFault::Kind::kSize: d = OfSize(fault); break;
      case TypeFault::Kind::kScale: d = OfScale(fault, *plan.plan->data_parallel); break;
    }
    if (plan.mesh.size(MeshAxis::kTp) != plan.mesh.world_size())
      d.message += " (axis " + std::string(ToString(fault.axis)) + ")";
    d.path = fault.path;
    d.where = fault.kind == TypeFault::Kind::kScale ? plan.plan->data_parallel->source : LineOf(plan, fault);
    out.push_back(std::move(d));
  }
  for (const TypeFault& fault : proof.untrue) {
    Diagnostic d = OfBoundary(fault);
    d.severity = Severity::kWarning;
    d.message += "; this boundary redistributes nothing, and no number depends on the declaration";
    d.path = fault.path;
    d.where = LineOf(plan, fault);
    out.push_back(std::move(d));
  }
  if (backward > 0) {
    Diagnostic d = MakeDiagnostic(
        Finding::kIllTyped,
        std::to_string(backward) + " more errors in the backward, which may follow from the errors in the forward");
    d.severity = Severity::kNote;
    out.push_back(std::move(d));
  }
  for (const auto& [what, unproven] : proof.unproven) {
    Diagnostic d = MakeDiagnostic(Finding::kUnproven,
                                  "could not be checked: " + what +
                                      (unproven.count == 1 ? "" : " (" + std::to_string(unproven.count) + " times)"));
    d.path = unproven.first;
    d.help = what.ends_with(": no rule")
                 ? "name an operator with the same rule in the plan (operator_like), or add a rule in C++ "
                   "(TypeOptions::rules)"
                 : kCompareNumbers;
    out.push_back(std::move(d));
  }
  for (const std::string& what : proof.sizes_not_compared) {
    Diagnostic d = MakeDiagnostic(Finding::kUnproven, "could not be checked: " + what);
    d.help = kCompareNumbers;
    out.push_back(std::move(d));
  }
  if (proof.layouts_hold() && !proof.sizes_compared && proof.sizes_not_compared.empty()) {
    Diagnostic d =
        MakeDiagnostic(Finding::kUnproven,
                       "the layouts are proven, but sizes and numbers that the forward takes from tensors were not "
                       "compared with the step of one rank");
    d.help = "run the step with ProveAtTwoSizes";
    out.push_back(std::move(d));
  }
  return out;
}

}  // namespace moonshard
