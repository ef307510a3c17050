// One plan on one model has the same findings wherever it is resolved: `check`, the REPL, `Parallelize` of a host and
// the ranks of the trainer.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "dsl/embed/moonshard.h"
#include "engine/core/findings/forms.h"
#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

// A finding per line, as JSON.
std::string Lines(const JsonValue::Array& findings) {
  std::string out;
  for (const JsonValue& finding : findings) out += WriteJson(finding, 0) + "\n";
  return out;
}

// Those of the first document in a stream: from a line "{" to a line "}". None where there is no document.
std::string FindingsIn(const std::string& text) {
  const size_t begin = text.starts_with("{\n") ? 0 : text.find("\n{\n");
  if (begin == std::string::npos) return "";
  const size_t end = text.find("\n}\n", begin);
  REQUIRE(end != std::string::npos);
  return Lines(ParseJson(text.substr(begin, end + 3 - begin), "stream").ValueOrThrow().Find("findings")->AsArray());
}

std::string OfCheck(const std::string& plan) {
  const Outcome done =
      RunExecutable(ExecutablePath(), {"check", kModel, "--mesh", "tp=2", "--plan", plan, "--format", "json"});
  INFO(done.ToText());
  REQUIRE((done.code == 0 || done.code == 1));
  return FindingsIn(done.out);
}

std::string OfRepl(const std::string& plan) {
  const Outcome done = RunExecutable(
      ExecutablePath(), {"repl", kModel, "--mesh", "tp=2", "--plan", plan, "--format", "json", "-c", ":help"});
  INFO(done.ToText());
  return FindingsIn(done.err);
}

// New weights: the launcher has no headers to resolve the plan against, so what is reported is the ranks'.
std::string OfTrainer(const std::string& plan, const ScratchFolder& scratch) {
  const std::string data = scratch.Write("tokens.bin", RawTokens<uint16_t>(SomeTokens(400, 64)));
  const Outcome done = RunExecutable(ExecutablePath(),
                                     {"train", kModel, "--init", "1", "--mesh", "tp=2", "--plan", plan, "--format",
                                      "json", "--data", data, "--steps", "1", "--batch", "2", "--sequence", "8"},
                                     {"OMP_NUM_THREADS=1"}, 120);
  INFO(done.ToText());
  return FindingsIn(done.err);
}

std::string FoundText(const Diagnostics& found) {
  JsonValue::Array out;
  for (const Diagnostic& d : found) out.push_back(ToJson(d));
  return Lines(out);
}

// As a host applies it: warnings by the callback, errors by the exception.
std::string OfParallelize(const std::string& file) {
  const ModelConfig config = ModelConfig::Read(kModel).ValueOrThrow();
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow());
  CausalLm model;
  {
    const nn::DeferInit defer;
    model = MakeCausalLm(config.json(), config.file_name()).ValueOrThrow();
  }
  const LiveTree live = ReadLiveTree(*model.module).ValueOrThrow();
  Diagnostics found;
  ApplyOptions options;
  options.on_findings = [&](const Diagnostics& findings) { found = findings; };
  try {
    const Plan plan = LoadPlan(file, {.config = config.json(), .mesh = mesh.shape(), .model = live.tree.get()});
    const auto applied = ParallelizeModule(*model.module, plan, mesh, options);
    CHECK(FoundText(applied->plan().findings) == FoundText(found));
  } catch (const PlanError& error) {
    CHECK(found.empty());
    found = error.diagnostics();
  }
  return FoundText(found);
}

// The identifiers in a text of Lines, each with a blank behind it.
std::string Identifiers(const std::string& lines) {
  std::string out;
  for (size_t at = lines.find("\"id\":\""); at != std::string::npos; at = lines.find("\"id\":\"", at + 1)) {
    out += lines.substr(at + 6, 6) + " ";
  }
  return out;
}

// Headers do not show the modules that own no parameter, so that what only such a module could mend is a warning there
// and an error on the live model.
std::string AsErrors(std::string lines) {
  const std::string warning = "\"severity\":\"warning\"";
  for (size_t at = lines.find(warning); at != std::string::npos; at = lines.find(warning)) {
    lines.replace(at, warning.size(), "\"severity\":\"error\"");
  }
  return lines;
}

struct FoundRow {
  const char* name;
  const char* plan;
  const char* found;  // identifiers, in order
  bool errors_when_live = false;
};

TEST_CASE("the same findings from check, the REPL, Parallelize and the trainer") {
  const std::string over_llama = "return plan { api = 1, extends 'llama', ";
  const std::vector<FoundRow> rows = {
      {"shipped", "", ""},
      // Warnings: of compile, of lint.
      {"unclaimed",
       "return plan { api = 1, at('model.layers.*.mlp.{gate,up}_proj', colwise {}), at('model.layers.*.mlp.down_proj', "
       "rowwise {}) }",
       "MS0205 "},
      {"lint", "at('model.layers.*.mlp.down_proj', replicated())", "MS0313 "},
      {"partial", "at('model.layers.*.self_attn.o_proj', rowwise { output = partial })", "MS0315 ", true},
      // Errors: of the language, of match, of compile.
      {"name", "at('model.layers.*.self_attn.o_proj', rowwize {})", "MS0102 "},
      {"unmatched", "at('model.layers.*.mlp.donw_proj', rowwise {})", "MS0202 "},
      {"conflict", "at('model.layers.0.*.o_proj', rowwise {}), at('model.layers.*.self_attn.o_proj', rowwise {})",
       "MS0204 "},
      {"dim", "at('model.layers.*.mlp.up_proj.weight', shard(3))", "MS0303 "},
      {"heads", "at('model.layers.*.self_attn.q_proj', colwise { heads = 3 })", "MS0304 "},
  };
  const ScratchFolder scratch;
  for (const FoundRow& row : rows) {
    const std::string body = row.plan;
    const std::string plan = scratch.Write(std::string(row.name) + ".lua",
                                           (body.starts_with("return") ? body : over_llama + body + " }") + "\n");
    const std::string checked = OfCheck(plan);
    const std::string live = row.errors_when_live ? AsErrors(checked) : checked;
    INFO(row.name);
    CHECK(Identifiers(checked) == row.found);
    CHECK(OfRepl(plan) == checked);
    CHECK(OfParallelize(plan) == live);
    CHECK(OfTrainer(plan, scratch) == live);
  }
}

}  // namespace
}  // namespace moonshard::test
