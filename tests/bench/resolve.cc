// Time to resolve a plan on a tree of 63,201 modules: 61 layers of 256 experts. Prints the median of
// several runs of match and compile, of lint, of RE2 alone on every path, and the ratio of the first to the last.
//   bench_resolve [TIMES]
#include <re2/re2.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "engine/plan/match/pattern.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/bench/large_tree.h"
#include "tests/bench/timing.h"

namespace moonshard {
namespace {

Style MakeStyle(std::string name, Layout weight, Redistribution input, Redistribution output) {
  Style style;
  style.name = std::move(name);
  style.params["weight"] = Placement(std::move(weight));
  style.inputs.emplace_back(std::move(input));
  style.outputs.emplace_back(std::move(output));
  return style;
}

std::shared_ptr<Plan> MakePlan(const std::string& layer) {
  const Placement replicate = Layout::Replicate();
  const Placement shared = Layout::Shared();
  const Placement last = Layout::Shard(-1);
  const Placement partial = Layout::Partial();
  const Style colwise = MakeStyle("colwise", Layout::Shard(0), {replicate, shared}, {last, last});
  const Style rowwise = MakeStyle("rowwise", Layout::Shard(1), {last, last}, {partial, replicate});
  Style vocabulary = MakeStyle("vocab_rowwise", Layout::Shard(0), {replicate, replicate}, {partial, replicate});
  vocabulary.lookup = Lookup::kMasked;
  Style full;
  full.name = "replicated";
  full.params["*"] = replicate;
  auto plan = std::make_shared<Plan>();
  plan->name = "bench";
  const std::pair<std::string, const Style&> rules[] = {
      {"model.embed_tokens", vocabulary},
      {layer + ".self_attn.{q_b,kv_b}_proj", colwise},
      {layer + ".self_attn.{q_a_proj,kv_a_proj_with_mqa}", full},
      {layer + ".self_attn.o_proj", rowwise},
      {layer + ".mlp.gate", full},
      {layer + ".mlp.experts.*.gate_proj", colwise},
      {layer + ".mlp.experts.*.up_proj", colwise},
      {layer + ".mlp.experts.*.down_proj", rowwise},
      {layer + ".{input,post_attention}_layernorm", full},
      {"lm_head", colwise},
  };
  int line = 0;
  for (const auto& [pattern, style] : rules) {
    Rule rule;
    rule.pattern = pattern;
    rule.style = style;
    rule.source = {"bench.lua", ++line, 0, 0, ""};
    plan->rules.push_back(std::move(rule));
  }
  return plan;
}

double MedianMs(int times_run, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < times_run; ++i) times.push_back(bench::MillisecondsOf(run));
  return bench::Median(std::move(times));
}

void Bench(const char* what, const std::shared_ptr<const ModuleTree>& tree, const std::shared_ptr<const Plan>& plan,
           int times_run) {
  const MeshShape mesh = MeshShape::Parse("tp=8").ValueOrThrow();
  int64_t claimed = 0;
  std::vector<double> compile_times;  // match and compile, which the ratio is about
  std::vector<double> lint_times;     // every pass behind them
  for (int i = 0; i < times_run; ++i) {
    const Resolution resolved = RunPasses(plan, tree, mesh);
    Check(resolved.compiled.has_value(), "the plan of the bench has errors: " + ToText(resolved.diagnostics));
    compile_times.push_back(0);
    lint_times.push_back(0);
    for (const PassRecord& pass : resolved.passes) {
      const bool compiles = pass.name == "match" || pass.name == "adapters" || pass.name == "compile";
      (compiles ? compile_times : lint_times).back() += 1e3 * pass.seconds;
    }
    claimed = 0;
    for (int64_t count : resolved.compiled->rule_matches) claimed += count;
  }
  const double resolve = bench::Median(compile_times);
  std::vector<std::string> regexes;
  for (const Rule& rule : plan->rules) {
    regexes.push_back(TranslatePattern(rule.pattern, rule.syntax).ValueOrThrow().regex);
  }
  const PatternSet set = PatternSet::Compile(regexes).ValueOrThrow();
  int64_t found = 0;
  const double re2 = MedianMs(times_run, [&] {
    found = 0;
    std::vector<int> indices;
    for (const Module& module : tree->modules()) {
      if (set.Match(module.path, indices)) found += static_cast<int64_t>(indices.size());
    }
  });
  std::printf(
      "%s: %zu modules, %lld claimed (RE2 alone: %lld); match and compile %.2f ms, lint %.2f ms, "
      "RE2 on every path %.2f ms, ratio of the first %.2f\n",
      what, tree->modules().size(), static_cast<long long>(claimed), static_cast<long long>(found), resolve,
      bench::Median(lint_times), re2, resolve / re2);
}

}  // namespace
}  // namespace moonshard

int main(int argc, char** argv) {
  const int times_run = moonshard::bench::Arguments(argc, argv).Times(0, 15);
  const auto begin = std::chrono::steady_clock::now();
  const auto tree = moonshard::bench::MakeLargeTree();
  const std::chrono::duration<double, std::milli> made = std::chrono::steady_clock::now() - begin;
  std::printf("tree made in %.2f ms\n", made.count());
  moonshard::Bench("patterns without numbers", tree, moonshard::MakePlan("model.layers.*"), times_run);
  moonshard::Bench("patterns with numbers", tree, moonshard::MakePlan("model.layers.{0..60}"), times_run);
  return 0;
}
