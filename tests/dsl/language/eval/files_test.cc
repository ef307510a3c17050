// Which files a plan can read.
#include "dsl/language/eval/files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/dsl/inputs.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

// A directory of its own, removed at the end.
class TemporaryFolder {
 public:
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(At(name)).parent_path());
    scratch_.Write(name, text);
  }
  std::string At(const std::string& name) const { return scratch_ / name; }

 private:
  test::ScratchFolder scratch_;
};

const char* kUsesHelper = "return plan { require(\"helper\").rules }";
const char* kHelper = "return { rules = at(\"x\", replicated()) }";

TEST_CASE("a module in the plan's own directory, and in one below it") {
  TemporaryFolder folder;
  folder.Write("plans/p.lua", kUsesHelper);
  folder.Write("plans/helper.lua", "return require \"parts.inner\"");
  folder.Write("plans/parts/inner.lua", kHelper);
  const Result<Plan> plan = LoadPlanFile(folder.At("plans/p.lua"), LlamaInputs(2));
  INFO(TextOf(plan));
  REQUIRE(plan.ok());
  CHECK(plan.value().rules.front().source.file == folder.At("plans/parts/inner.lua"));
}

TEST_CASE("a module may return a list of rules") {
  TemporaryFolder folder;
  folder.Write("p.lua", "return plan { at('y', replicated()), require 'helper' }");
  folder.Write("helper.lua", "return { at('x', replicated()), { at('z', replicated()) } }");
  const Result<Plan> plan = LoadPlanFile(folder.At("p.lua"), LlamaInputs(2));
  INFO(TextOf(plan));
  REQUIRE(plan.ok());
  CHECK(plan.value().rules.size() == 3);
}

TEST_CASE("a module is run once") {
  TemporaryFolder folder;
  folder.Write("p.lua", "return plan { require(\"helper\") ~= require(\"helper\") and divides(2, 1) }");
  folder.Write("helper.lua", kHelper);
  CHECK(LoadPlanFile(folder.At("p.lua"), LlamaInputs(2)).ok());
}

TEST_CASE("a link that leads out of the directory is not followed") {
  TemporaryFolder folder;
  folder.Write("secret/helper.lua", kHelper);
  folder.Write("plans/p.lua", kUsesHelper);
  fs::create_symlink(folder.At("secret/helper.lua"), folder.At("plans/helper.lua"));
  const Result<Plan> file_link = LoadPlanFile(folder.At("plans/p.lua"), LlamaInputs(2));
  REQUIRE(!file_link.ok());
  CHECK(file_link.diagnostics().front().finding == Finding::kModuleNotFound);
  fs::create_directory_symlink(folder.At("secret"), folder.At("plans/inner"));
  folder.Write("plans/q.lua", "return plan { require(\"inner.helper\").rules }");
  CHECK(!LoadPlanFile(folder.At("plans/q.lua"), LlamaInputs(2)).ok());
  CHECK(!FindInside(folder.At("plans"), "../secret/helper.lua"));
  CHECK(!FindInside(folder.At("plans"), folder.At("secret/helper.lua")));
  CHECK(FindInside(folder.At("secret"), "helper.lua"));
}

TEST_CASE("text without a file can read no file") {
  TemporaryFolder folder;
  folder.Write("helper.lua", kHelper);
  const fs::path before = fs::current_path();
  fs::current_path(folder.At("."));
  const Result<Plan> plan = EvaluatePlan(kUsesHelper, "p.lua", LlamaInputs(2));
  fs::current_path(before);
  REQUIRE(!plan.ok());
  CHECK(plan.diagnostics().front().finding == Finding::kModuleNotFound);
}

TEST_CASE("a pipe, a directory and a missing file are errors, at once") {
  TemporaryFolder folder;
  REQUIRE(mkfifo(folder.At("pipe.lua").c_str(), 0600) == 0);
  CHECK(LoadPlanFile(folder.At("pipe.lua"), {}).diagnostics().front().finding == Finding::kFileUnreadable);
  CHECK(LoadPlanFile(folder.At("") + "/", {}).diagnostics().front().finding == Finding::kFileUnreadable);
  CHECK(LoadPlanFile(folder.At("none.lua"), {}).diagnostics().front().finding == Finding::kFileNotFound);
  CHECK(LoadPlanFile("no_such_plan", {}).diagnostics().front().finding == Finding::kPlanNotFound);
}

TEST_CASE("files in bytecode or too many of them are refused") {
  TemporaryFolder folder;
  folder.Write("p.lua", kUsesHelper);
  folder.Write("helper.lua", "\x1bLua");
  CHECK(LoadPlanFile(folder.At("p.lua"), LlamaInputs(2)).diagnostics().front().finding == Finding::kSyntax);
  folder.Write("q.lua", "for i = 1, 100 do require(\"m\" .. i) end return plan {}");
  for (int i = 1; i <= 100; ++i) folder.Write("m" + std::to_string(i) + ".lua", "return " + std::to_string(i));
  const Result<Plan> many = LoadPlanFile(folder.At("q.lua"), LlamaInputs(2));
  REQUIRE(!many.ok());
  CHECK(many.diagnostics().front().message == "the plan reads more than 64 files");
  folder.Write("d.lua", "return plan { require \"d1\" }");
  for (int i = 1; i <= 40; ++i) {
    folder.Write("d" + std::to_string(i) + ".lua", "return require \"d" + std::to_string(i + 1) + "\"");
  }
  const Result<Plan> deep = LoadPlanFile(folder.At("d.lua"), LlamaInputs(2));
  REQUIRE(!deep.ok());
  CHECK(deep.diagnostics().front().message == "require and extends nest files more than 16 levels deep");
}

TEST_CASE("a named plan comes from the search path first, and may extend the built-in one of its name") {
  TemporaryFolder folder;
  folder.Write("llama.lua", "return plan { extends \"llama\", at(\"extra\", replicated()) }");
  PlanInputs inputs = LlamaInputs(2);
  inputs.search_path = {folder.At("")};
  const Result<Plan> plan = LoadPlanFile("llama", inputs);
  INFO(TextOf(plan));
  REQUIRE(plan.ok());
  CHECK(plan.value().rules.front().pattern == "extra");
  CHECK(plan.value().rules.back().source.file == "plans/llama.lua");
}

TEST_CASE("the lora sections of a plan replace those of the plan that it extends") {
  TemporaryFolder folder;
  folder.Write("base.lua",
               "return plan { extends \"llama\", lora { at = \"a\" }, lora { at = \"b\", name = \"two\" } }");
  folder.Write("same.lua", "return plan { extends \"base\" }");
  folder.Write("other.lua", "return plan { extends \"base\", lora { at = \"c\" } }");
  const Result<Plan> same = LoadPlanFile(folder.At("same.lua"), LlamaInputs(2));
  const Result<Plan> other = LoadPlanFile(folder.At("other.lua"), LlamaInputs(2));
  INFO(TextOf(same) << TextOf(other));
  REQUIRE((same.ok() && other.ok()));
  REQUIRE(same.value().adapters.size() == 2);
  CHECK(same.value().adapters[1].name == "two");
  REQUIRE(other.value().adapters.size() == 1);
  CHECK(other.value().adapters[0].modules[0].pattern == "c");
}

TEST_CASE("LoadPlan throws all diagnostics") {
  CHECK_THROWS_AS(LoadPlan("no_such_plan", {}), PlanError);
  CHECK(LoadPlan("llama", LlamaInputs(2)).name == "llama");
}

}  // namespace
}  // namespace moonshard
