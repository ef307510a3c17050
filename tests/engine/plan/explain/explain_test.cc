#include "engine/plan/explain/explain.h"

#include <catch2/catch.hpp>

#include "engine/plan/explain/texts.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;

TEST_CASE("explain is byte-stable and says what the contract says") {
  const CompiledPlan plan = CompileMlp("tp=2");
  const JsonValue json = ExplainJson(plan, {1, std::nullopt});
  CHECK(WriteJson(json, 2) == WriteJson(ExplainJson(CompileMlp("tp=2"), {1, std::nullopt}), 2));
  CHECK(json.Find("format_version")->AsString() == "1.0");
  CHECK(json.Find("rank")->AsInt() == 1);
  CHECK(json.Find("mesh")->Find("tp")->AsInt() == 2);
  const JsonValue& gate = *json.Find("modules")->Find("mlp.gate");
  CHECK(WriteJson(gate, 0) ==
        "{\"input\":[[\"replicate\",\"shared\"]],\"output\":[[\"shard(-1)\",\"shard(-1)\"]],\"params\":{\"weight\":"
        "{\"dtype\":\"float32\",\"layout\":\"shard(0)\",\"local_shape\":[5,4],\"shape\":[10,4]}},\"rule\":0,"
        "\"style\":\"colwise\"}");
  CHECK(WriteJson(*json.Find("rules"), 0) ==
        "[{\"matches\":2,\"pattern\":\"mlp.{gate,up}\",\"source\":\"p.lua:1\",\"style\":\"colwise\"},"
        "{\"matches\":1,\"pattern\":\"mlp.down\",\"source\":\"p.lua:2\",\"style\":\"rowwise\"}]");
}

TEST_CASE("the JSON lists adapters with their settings, and which is active") {
  const CompiledPlan bare = CompileMlp("tp=2");
  CHECK(ExplainJson(bare, {0, std::nullopt}).Find("adapters") == nullptr);
  Plan plan = *bare.plan;
  Adapter& one = plan.adapters.emplace_back();
  one.name = "one";
  one.modules = {{"mlp.{up,gate}"}};
  one.rank = 2;
  Adapter& other = plan.adapters.emplace_back();
  other.name = "other";
  other.modules = {{"mlp.down"}};
  other.rank = 1;
  other.alpha = 0.5;
  other.dropout = 0.25;
  other.rslora = true;
  other.dtype = "float64";
  const CompiledPlan made =
      ResolvePlan(std::make_shared<const Plan>(plan), bare.tree, test::Mesh("tp=2")).ValueOrThrow();
  CHECK(WriteJson(*ExplainJson(made, {0, std::nullopt}).Find("adapters"), 0) ==
        "[{\"active\":true,\"modules\":[\"mlp.gate\",\"mlp.up\"],\"name\":\"one\",\"settings\":{\"alpha\":8.0,"
        "\"dropout\":0.0,\"dtype\":null,\"rank\":2,\"rslora\":false}},"
        "{\"active\":false,\"modules\":[\"mlp.down\"],\"name\":\"other\",\"settings\":{\"alpha\":0.5,"
        "\"dropout\":0.25,\"dtype\":\"float64\",\"rank\":1,\"rslora\":true}}]");
}

TEST_CASE("paths fold by their numbers") {
  CHECK(FoldPaths({"a.b"}) == "a.b");
  CHECK(FoldPaths({"l.0.x", "l.1.x", "l.2.x", "l.5.x"}) == "l.{0..2,5}.x");
  CHECK(FoldPaths({"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1"}) == "l.{0,1}.e.{0,1}");
  CHECK(FoldPaths({"l.1.x", "l.2.x", "l.02.x", "l.99999999999999999999.x"}) == "l.{1,2,02,99999999999999999999}.x");
  CHECK(FoldPaths({"l.01.x", "l.02.x"}) == "l.{01,02}.x");
  CHECK(FoldClasses({"l.0.x", "head", "l.1.x", "l.0.y.x"}) == "head, l.{0,1}.x, l.0.y.x");
}

TEST_CASE("the page of text folds layers and says what moves") {
  const std::string text = ExplainText(CompileMlp("tp=2"), {0, std::nullopt});
  CAPTURE(text);
  CHECK(text.find("mlp.gate") != std::string::npos);
  CHECK(text.find("replicate -> shared  (all_reduce backward)") != std::string::npos);
  CHECK(text.find("[10, 4] -> [5, 4]") != std::string::npos);
  CHECK(text.find("forward: 1 all_reduce (16 B)") != std::string::npos);
}

TEST_CASE("a placement on several axes is an object by axis") {
  CompiledPlan plan = CompileMlp("tp=2");
  plan.mesh = MeshShape::Parse("dp=2,tp=2").ValueOrThrow();
  for (ModuleLayouts& layouts : plan.layouts) {
    for (Placement& placement : layouts.params) placement[MeshAxis::kDpShard] = Layout::Shard(1);
  }
  const JsonValue json = ExplainJson(plan, {0, std::nullopt});
  const JsonValue& weight = *json.Find("modules")->Find("mlp.gate")->Find("params")->Find("weight");
  CHECK(WriteJson(*weight.Find("layout"), 0) == "{\"dp_shard\":\"shard(1)\",\"tp\":\"shard(0)\"}");
  CHECK(WriteJson(*weight.Find("local_shape"), 0) == "[5,2]");
}

}  // namespace
}  // namespace moonshard
