// How long the REPL makes a person wait on a tree of 63,201 modules (61 layers of 256 experts): completion, :why,
// :reload and the commands that look at every module. Prints medians; nothing fails.
//   bench_repl [TIMES]
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "dsl/commands/repl/completion.h"
#include "dsl/commands/repl/session.h"
#include "tests/bench/large_tree.h"
#include "tests/bench/timing.h"

namespace moonshard {
namespace {

constexpr const char* kPlan = R"(
return plan {
  at("model.embed_tokens", vocab_rowwise {}),
  at("model.layers.*.self_attn.{q_b,kv_b}_proj", colwise {}),
  at("model.layers.*.self_attn.{q_a_proj,kv_a_proj_with_mqa}", replicated {}),
  at("model.layers.*.self_attn.o_proj", rowwise {}),
  at("model.layers.*.mlp.gate", replicated {}),
  at("model.layers.*.mlp.experts.*.{gate,up}_proj", colwise {}),
  at("model.layers.*.mlp.experts.*.down_proj", rowwise {}),
  at("model.layers.*.{input,post_attention}_layernorm", replicated {}),
  at("lm_head", colwise { output = replicate }),
}
)";

void Print(const char* what, int times_run, const std::function<void()>& run) {
  std::vector<double> times;
  run();
  for (int i = 0; i < times_run; ++i) times.push_back(bench::MillisecondsOf(run));
  std::printf("%-60s %8.2f ms\n", what, bench::Median(times));
}

void Run(int times_run) {
  const auto tree = bench::MakeLargeTree();
  const std::string plan =
      std::filesystem::temp_directory_path() / ("moonshard_bench_repl_" + std::to_string(getpid()) + ".lua");
  std::ofstream(plan) << kPlan;
  Session session({});
  session.workspace().SetModel("large", JsonValue::Object{}, tree);
  session.Feed(":mesh tp=8");
  const Outcome loaded = session.Feed(":load " + plan);
  std::printf("%zu modules\n%s%s", tree->modules().size(), loaded.err.c_str(), loaded.out.c_str());
  for (const char* line : {":why model.layers.6", ":why model.layers.60.mlp.experts.",
                           ":match model.layers.*.mlp.experts.*.", "at(\"model.layers.{0..60}.self_attn.", "colw"}) {
    Print((std::string("Tab behind ") + line).c_str(), times_run,
          [&] { session.Complete(line, std::string_view(line).size()); });
  }
  for (const char* line :
       {":why model.layers.60.mlp.experts.255.up_proj", ":why model.layers.3.mlp.experts.255.upp_proj", ":reload",
        ":match model.layers.*.mlp.experts.*.up_proj", ":match model.layers.{0..60}.mlp.experts.{0..255}.up_proj",
        ":tree model.layers.60", ":flow 60", ":cost", ":unmatched", ":conflicts",
        ":try \"model.layers.*.mlp.experts.*.up_proj\" replicated", "1 + 1"}) {
    Print(line, times_run, [&] { session.Feed(line); });
  }
  std::filesystem::remove(plan);
}

}  // namespace
}  // namespace moonshard

int main(int argc, char** argv) {
  moonshard::Run(moonshard::bench::Arguments(argc, argv).Times(0, 11));
  return 0;
}
