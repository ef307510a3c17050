// Every file of tests/cases/plan_errors is a plan with mistakes; what is said about it stands beside it as .txt. Lines
// "--- mesh: tp=3", "--- option: name=value" and "--- model: yes" at its top say what it is given.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>

#include "dsl/language/eval/load_plan.h"
#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = test::SourcePath("tests/cases/plan_errors");

PlanInputs InputsOf(const std::string& text, const ModuleTree& model) {
  PlanInputs inputs = LlamaInputs(2);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && line.starts_with("--- ");) {
    const size_t colon = line.find(": ");
    const std::string key = line.substr(4, colon - 4);
    const std::string value = line.substr(colon + 2);
    if (key == "mesh") {
      inputs.mesh = MeshShape::Parse(value).ValueOrThrow();
    } else if (key == "option") {
      const size_t equals = value.find('=');
      inputs.options[value.substr(0, equals)] = value.substr(equals + 1);
    } else {
      REQUIRE(key == "model");
      inputs.model = &model;
    }
  }
  return inputs;
}

TEST_CASE("what is said about plans with mistakes") {
  const fs::path before = fs::current_path();
  fs::current_path(kFolder);  // so that the texts show the files' own names
  const ModuleTree model = SmallLlama();
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(".")) {
    if (entry.path().extension() == ".lua") names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  CHECK(names.size() > 30);
  for (const std::string& name : names) {
    const Result<Plan> plan = LoadPlanFile(name, InputsOf(ReadWholeFile(name), model));
    INFO(name);
    CHECK(!plan.ok());
    CheckGolden(fs::path(name).replace_extension(".txt").string(), ToText(plan.diagnostics()));
  }
  fs::current_path(before);
}

}  // namespace
}  // namespace moonshard
