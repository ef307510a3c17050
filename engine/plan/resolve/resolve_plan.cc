// The stages from a plan to its compiled form are a table of passes, and this file runs it. A new pass is a line in the
// table, in the place where its findings are to be reported; `explain --passes` and the records follow from it. Passes
// communicate through Work only, and no pass looks at findings of another but through the compiled plan.
#include "engine/plan/resolve/resolve_plan.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <tuple>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/plan/compile/adapters.h"
#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/compile.h"
#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

// What the passes work on. `flow` refers to `out.compiled`, which stays where it is until the last pass has run.
struct Work {
  Resolution out;
  std::optional<MatchedPlan> incomplete = {};  // where `out` has no matched plan since rules match nothing
  std::optional<Flow> flow;
  HeadCounts heads = {};
  std::string quantization = {};  // quant_method of config.json; "": none
};

// `run` adds its findings to `found` and returns what it made, for PassRecord::made.
struct Pass {
  const char* name;
  std::string (*run)(Work& work, Diagnostics& found);
};

std::string RunMatch(Work& work, Diagnostics& found) {
  work.out.matched = MatchRules(work.out.plan, work.out.tree, &work.incomplete).Collect(found);
  if (!work.out.matched) return "nothing";
  const auto claimed = std::ranges::count_if(work.out.matched->rule_of, [](int32_t rule) { return rule >= 0; });
  return std::to_string(claimed) + " of " + Count(work.out.tree->modules().size(), "module") + " by " +
         Count(work.out.plan->rules.size(), "rule");
}

std::string RunAdapters(Work& work, Diagnostics& found) {
  const size_t bare = work.out.tree->modules().size();
  std::optional<MatchedPlan> matched = AddAdapters(*work.out.matched).Collect(found);
  work.out.matched = std::move(matched);
  if (!work.out.matched) return "nothing";
  work.out.tree = work.out.matched->tree;
  return Count(work.out.tree->modules().size() - bare, "module") + " of factors";
}

std::string QuantizationIn(const JsonValue& config) {
  const JsonValue* fields = config.Find("quantization_config");
  const JsonValue* method = fields != nullptr && fields->is_object() ? fields->Find("quant_method") : nullptr;
  return method != nullptr && method->is_string() ? method->AsString() : "";
}

// A style that does not find its weight, or finds packed integers, in a quantized checkpoint: the format is the reason.
void NameQuantization(const std::string& method, Diagnostics& found) {
  if (method.empty()) return;
  for (Diagnostic& d : found) {
    if (d.finding != Finding::kNoSuchParameter && d.finding != Finding::kStyleDoesNotFit) continue;
    d.help = "config.json declares quantization_config.quant_method = '" + method + "'" +
             (d.help.empty() ? "; use a checkpoint that is not quantized" : "; " + d.help);
  }
}

std::string RunCompile(Work& work, Diagnostics& found) {
  work.out.compiled = CompilePlan(*work.out.matched, work.out.mesh).Collect(found);
  NameQuantization(work.quantization, found);
  if (!work.out.compiled) return "nothing";
  const CompiledPlan& compiled = *work.out.compiled;
  return Count(compiled.steps.size(), "distinct step list") +
         (compiled.units.empty() ? "" : ", " + Count(compiled.units.size(), "unit"));
}

std::string RunShare(Work& work, Diagnostics& found) {
  if (std::optional<Diagnostic> full = FindMostlyReplicated(*work.out.compiled)) found.push_back(std::move(*full));
  return "";
}

// What the lint passes read. It is made after the findings of match are in the compiled plan: a rule that matched
// nothing in the headers may be the one that the others wait for.
std::string RunFlow(Work& work, Diagnostics&) {
  work.out.compiled->findings = work.out.diagnostics;
  work.flow.emplace(*work.out.compiled, work.heads);
  const size_t classes = work.flow->groups().size();
  return std::to_string(classes) + (classes == 1 ? " class of modules" : " classes of modules");
}

template <void (*Lint)(const Flow&, Diagnostics&)>
std::string RunLint(Work& work, Diagnostics& found) {
  if (work.out.mesh.world_size() == 1) return "not run: one rank";
  Lint(*work.flow, found);
  return "";
}

template <void (*Lint)(const Flow&, Diagnostics&)>
std::string RunTpLint(Work& work, Diagnostics& found) {
  if (work.out.mesh.size(MeshAxis::kTp) == 1) return "not run: tp has one rank";
  Lint(*work.flow, found);
  return "";
}

// Lints that infer from names and neighbourhood which module feeds which: where the model itself knows, its checks
// decide.
template <void (*Lint)(const Flow&, Diagnostics&)>
std::string RunGuessedFlow(Work& work, Diagnostics& found) {
  if (!work.out.tree->checks().empty()) return "not run: the model has checks of its own";
  return RunTpLint<Lint>(work, found);
}

// In the order in which their findings are reported. The passes from the first of lint on only read the compiled plan.
constexpr Pass kPasses[] = {
    {"match", RunMatch},
    {"adapters", RunAdapters},
    {"compile", RunCompile},
    {"lint-share", RunShare},
    {"flow", RunFlow},
    {"lint-large", RunLint<LintLargeReplicated>},
    {"lint-shards", RunGuessedFlow<LintShards>},
    {"lint-heads", RunGuessedFlow<LintHeads>},
    {"lint-head-order", RunTpLint<LintHeadOrder>},
    {"lint-order", RunTpLint<LintOrder>},
    {"lint-stream", RunGuessedFlow<LintStream>},
    {"lint-partial", RunTpLint<LintPartialSums>},
    {"lint-norms", RunTpLint<LintNorms>},
    {"lint-cost", RunTpLint<LintCost>},
};

// The order of a pass's findings: by line, those without a line first, then by path. Not that of the modules: a tree
// from headers and the live model's list the same modules in different orders, and the findings are to be the same.
bool Before(const Diagnostic& a, const Diagnostic& b) {
  return std::tie(a.where.file, a.where.line, a.where.column, a.path) <
         std::tie(b.where.file, b.where.line, b.where.column, b.path);
}

// Of a plan with rules that match nothing, the styles of the others are checked: each says by itself whether it fits
// its modules. What modules say of each other is not, since the rule that is missing may be the cause.
void CheckOtherStyles(Work& work) {
  if (!work.incomplete) return;
  const Clock::time_point begin = Clock::now();
  Diagnostics found = CheckStyles(*work.incomplete, work.out.mesh);
  std::erase_if(found, [](const Diagnostic& d) { return d.severity != Severity::kError; });
  NameQuantization(work.quantization, found);
  std::ranges::stable_sort(found, Before);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  work.out.passes.push_back(MakeRecord("compile", "the styles of the rules that match", found, seconds));
  work.out.diagnostics.insert(work.out.diagnostics.end(), found.begin(), found.end());
}

// match, adapters and compile leave nothing to go on with where they fail; a lint pass that finds an error leaves the
// plan to the passes behind it.
bool CanGoOn(const Work& work, size_t passes_run) {
  return passes_run <= 2 ? work.out.matched.has_value() : work.out.compiled.has_value();
}

// Of the model itself. A plan that has errors already is not held against its forward: what follows from them would be
// reported again.
void RunChecks(Resolution& out) {
  const bool sound = !HasErrors(out.diagnostics);
  for (const PlanCheck& check : out.tree->checks()) {
    Diagnostics found;
    const Clock::time_point begin = Clock::now();
    std::string made = sound ? check.run(*out.compiled, found) : "not run: the plan has errors";
    std::ranges::stable_sort(found, Before);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    out.passes.push_back(MakeRecord(check.name, std::move(made), found, seconds));
    out.diagnostics.insert(out.diagnostics.end(), found.begin(), found.end());
  }
}

}  // namespace

PassRecord MakeRecord(std::string name, std::string made, const Diagnostics& found, double seconds) {
  const auto of = [&](Severity severity) {
    return static_cast<size_t>(std::ranges::count(found, severity, &Diagnostic::severity));
  };
  return {std::move(name), std::move(made), of(Severity::kError), of(Severity::kWarning), of(Severity::kNote), seconds};
}

Resolution RunPasses(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree, const MeshShape& mesh,
                     const JsonValue& config) {
  Check(plan && tree, "ResolvePlan needs a plan and a module tree");
  Work work;
  work.out.plan = std::move(plan);
  work.out.tree = std::move(tree);
  work.out.mesh = mesh;
  work.heads = HeadCounts(config);
  work.quantization = QuantizationIn(config);
  for (const Pass& pass : kPasses) {
    Diagnostics found;
    const Clock::time_point begin = Clock::now();
    std::string made = pass.run(work, found);
    std::ranges::stable_sort(found, Before);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    work.out.passes.push_back(MakeRecord(pass.name, std::move(made), found, seconds));
    work.out.diagnostics.insert(work.out.diagnostics.end(), found.begin(), found.end());
    if (CanGoOn(work, work.out.passes.size())) continue;
    CheckOtherStyles(work);
    return std::move(work.out);
  }
  RunChecks(work.out);
  if (HasErrors(work.out.diagnostics)) {
    work.out.compiled.reset();
  } else {
    work.out.compiled->findings = work.out.diagnostics;
  }
  return std::move(work.out);
}

Result<CompiledPlan> ToResult(Resolution resolution) {
  if (!resolution.compiled) return std::move(resolution.diagnostics);
  return Result<CompiledPlan>(*std::move(resolution.compiled), std::move(resolution.diagnostics));
}

Result<CompiledPlan> ResolvePlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                                 const MeshShape& mesh) {
  return ToResult(RunPasses(std::move(plan), std::move(tree), mesh));
}

std::string PassesText(std::span<const PassRecord> passes) {
  const std::string sum = "total";
  size_t width = sum.size();
  double total = 0;
  for (const PassRecord& pass : passes) {
    width = std::max(width, pass.name.size());
    total += pass.seconds;
  }
  const auto line = [&](const std::string& name, double seconds, const std::string& rest) {
    char time[32];
    std::snprintf(time, sizeof(time), "%10.3f ms", 1e3 * seconds);
    return name + std::string(width - name.size(), ' ') + time + (rest.empty() ? "" : "  " + Visible(rest)) + "\n";
  };
  std::string out;
  for (const PassRecord& pass : passes) {
    std::string rest = pass.made;
    const auto add = [&](size_t count, const char* what) {
      if (count > 0) rest += (rest.empty() ? "" : ", ") + Count(count, what);
    };
    add(pass.errors, "error");
    add(pass.warnings, "warning");
    add(pass.notes, "note");
    out += line(pass.name, pass.seconds, rest.empty() ? "no findings" : rest);
  }
  return out + line(sum, total, "");
}

JsonValue PassesJson(std::span<const PassRecord> passes) {
  JsonValue::Array out;
  for (const PassRecord& pass : passes) {
    out.emplace_back(JsonValue::Object{{"name", pass.name},
                                       {"made", pass.made},
                                       {"errors", pass.errors},
                                       {"warnings", pass.warnings},
                                       {"notes", pass.notes},
                                       {"seconds", pass.seconds}});
  }
  return out;
}

}  // namespace moonshard
