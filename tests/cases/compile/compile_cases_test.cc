// Runs every *.case in this directory: a tree and a plan, and what must come out: the compiled plan's text, or all
// diagnostics. APPROVE=1 writes what came out into the file.
//
//   == tree            as ModuleTree::ToText, or "@name" for ../trees/name.tree; "(headers)" for a tree from headers
//   == mesh            tp=2
//   == config          JSON, may be left out
//   == plan            Lua
//   == expect          the rest of the file
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "dsl/language/eval/load_plan.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/tree_text.h"

namespace moonshard {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(test::SourcePath("tests/cases/compile"));

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> Sections(const std::string& text) {
  std::map<std::string, std::string> out;
  for (size_t begin = text.find("== "); begin != std::string::npos;) {
    const size_t line_end = text.find('\n', begin);
    const size_t next = text.find("\n== ", line_end - 1);
    const size_t end = next == std::string::npos ? text.size() : next + 1;
    out[text.substr(begin + 3, line_end - begin - 3)] = text.substr(line_end + 1, end - line_end - 1);
    begin = next == std::string::npos ? next : next + 1;
  }
  return out;
}

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string Outcome(const std::map<std::string, std::string>& sections) {
  const auto section = [&](const std::string& name) {
    const auto found = sections.find(name);
    return found == sections.end() ? std::string() : Trimmed(found->second);
  };
  std::string tree_text = section("tree");
  if (tree_text.starts_with('@')) {
    const size_t end = std::min(tree_text.find('\n'), tree_text.size());
    tree_text =
        ReadFile(kFolder.parent_path() / "trees" / (tree_text.substr(1, end - 1) + ".tree")) + tree_text.substr(end);
  }
  const auto tree = std::make_shared<const ModuleTree>(TreeFromText(tree_text));
  PlanInputs inputs;
  inputs.model = tree.get();
  inputs.mesh = MeshShape::Parse(section("mesh")).ValueOrThrow();
  if (!section("config").empty()) inputs.config = ParseJson(section("config"), "config.json").ValueOrThrow();
  const Result<Plan> plan = EvaluatePlan(section("plan"), "test.lua", inputs);
  if (!plan.ok()) return ToText(plan.diagnostics());
  const Result<CompiledPlan> compiled = ResolvePlan(std::make_shared<const Plan>(plan.value()), tree, inputs.mesh);
  return ToText(compiled.diagnostics()) + (compiled.ok() ? compiled.value().ToText() : "");
}

TEST_CASE("compile cases") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".case") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 20);
  for (const std::filesystem::path& file : files) {
    DYNAMIC_SECTION(file.filename().string()) {
      const std::string text = ReadFile(file);
      const std::map<std::string, std::string> sections = Sections(text);
      const std::string outcome = Trimmed(Outcome(sections));
      if (Approving()) {
        WriteGolden(file, text.substr(0, text.find("== expect\n")) + "== expect\n" + outcome + "\n");
        continue;
      }
      const auto expect = sections.find("expect");
      REQUIRE(expect != sections.end());
      CHECK(outcome == Trimmed(expect->second));
    }
  }
}

}  // namespace
}  // namespace moonshard
