// A plan goes through JSON whole, and what is no plan is refused with the member's name. (All shipped plans go through
// it in tests/dsl/language/eval/isolated_test.cc.)
#include "engine/plan/plan/plan_json.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

SourceSpan Place(int line) { return {"a\xff.lua", line, 3, 4, "at(\"\x01\xc3\x28\")"}; }

// Every member differs from its default.
Plan FullPlan() {
  Placement two;
  two[MeshAxis::kTp] = Layout::Packed(-1, {{64, 8}, {32, 4}});
  two[MeshAxis::kDpShard] = Layout::Shard(0, 8);
  Style inner;
  inner.name = "inner";
  inner.params = {{"*", Layout::Owned(0, 3)}};
  Style style;
  style.name = "st\xfeyle";
  style.params = {{"weight", two}, {"b\xff", Layout::PackedEqually(1, 3)}};
  style.vectors = {{"bias", Layout::Partial()}};
  style.kinds = {{"Linear", {{"weight", Layout::Shared()}}}};
  style.inputs = {std::nullopt, Redistribution{Layout::Replicate(), Layout::SharedLast(64)}};
  style.outputs = {Redistribution{Layout::Partial(), Layout::Shard(1)}, Redistribution{Placement(), Layout::Zigzag(1)}};
  style.after = {"bias"};
  style.lookup = Lookup::kMasked;
  style.route = Route{true, 2, 1};
  style.exchange = Exchange{3, 4, 5, 2, 48, 1.25, 7};
  style.heads = 8;
  style.kind_styles = {{"Embedding", inner}};
  style.bare = true;
  style.missing = "half of it";
  Rule rule;
  rule.pattern = "model.*";
  rule.syntax = PatternSyntax::kNumbered;
  rule.style = style;
  rule.parameter = two;
  rule.optional = true;
  rule.lenient = true;
  rule.level = 2;
  rule.source = Place(7);
  DataParallel section;
  section.shards = false;
  section.wrap = {{"a.*", PatternSyntax::kRegex, Place(8)}};
  section.reshard = DataParallel::Reshard::kSome;
  section.reshard_ranks = 4;
  section.prefetch_forward = 2;
  section.prefetch_backward = 3;
  section.accumulate_shards = true;
  section.offload = true;
  section.ignored = {{"c", PatternSyntax::kGlob, Place(13)}};
  section.mean = false;
  section.buffers = DataParallel::Buffers::kRefuse;
  section.source = Place(9);
  Plan plan;
  plan.name = "full";
  plan.chosen = "why";
  plan.api = 1;
  plan.lenient = true;
  plan.rules = {rule, Rule{}};
  plan.fallback = inner;
  plan.fallback_source = Place(10);
  plan.data_parallel = section;
  plan.recompute = {{.modules = {{"b", PatternSyntax::kGlob, Place(11)}},
                     .keeps_attention = true,
                     .keeps_matmuls = Recomputed::Matmuls::kEverySecond,
                     .keep_modules = {{"d", PatternSyntax::kRegex, Place(14)}},
                     .source = Place(12)},
                    {}};
  plan.precision = {"bfloat16", "float32", "float64", false, Place(15)};
  plan.kept_dtypes = {{{"e", PatternSyntax::kGlob, Place(16)}, "float16"}};
  plan.adapters = {{.name = "first",
                    .modules = {{"f", PatternSyntax::kRegex, Place(17)}},
                    .rank = 3,
                    .alpha = 0.1,
                    .dropout = 0.25,
                    .rslora = true,
                    .dtype = "float64",
                    .source = Place(18)},
                   {}};
  return plan;
}

std::string Written(const Plan& plan) { return WriteJson(PlanJson(plan), 0); }

Result<Plan> Read(const std::string& text) { return ReadPlanJson(ParseJson(text, "wire").ValueOrThrow(), "wire"); }

TEST_CASE("a plan is the same after JSON") {
  const Plan plan = FullPlan();
  const std::string text = Written(plan);
  Plan read = Read(text).ValueOrThrow();
  CHECK(Written(read) == text);
  CHECK(read.ToText() == plan.ToText());
  CHECK(read.rules[0].style == plan.rules[0].style);
  CHECK(read.rules[0].source == plan.rules[0].source);
  CHECK(read.rules[0].parameter == plan.rules[0].parameter);
  CHECK(read.rules[0].style.params.contains("b\xff"));
  CHECK(read.data_parallel->wrap[0].source == plan.data_parallel->wrap[0].source);
  CHECK(Written(Read(Written(Plan{})).ValueOrThrow()) == Written(Plan{}));
  REQUIRE(read.adapters.size() == 2);
  CHECK(read.adapters[0].alpha == 0.1);
  CHECK(read.adapters[0].source == plan.adapters[0].source);
}

TEST_CASE("a plan whose section has no rule for buffers is read with the default, and written without the rule") {
  Plan plan = FullPlan();
  CHECK(Read(Written(plan)).ValueOrThrow().data_parallel->buffers == DataParallel::Buffers::kRefuse);
  std::string text = Written(plan);
  const std::string member = R"("buffers":2,)";
  REQUIRE(text.find(member) != std::string::npos);
  text.erase(text.find(member), member.size());
  CHECK(Read(text).ValueOrThrow().data_parallel->buffers == DataParallel::Buffers::kFirst);
  plan.data_parallel->buffers = DataParallel::Buffers::kFirst;
  CHECK(Written(plan) == text);
  text = Written(FullPlan());
  text.replace(text.find(member), member.size(), R"("buffers":3,)");
  CHECK(Read(text).diagnostics().front().message == "not a plan: data_parallel: buffers: the number is out of range");
}

TEST_CASE("an adapter of a worker that the language cannot declare is refused") {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = Written(FullPlan());
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    return !Read(text).ok();
  };
  CHECK_FALSE(refused(R"("rank":3)", R"("rank":4)"));
  CHECK(refused(R"("rank":3)", R"("rank":0)"));
  CHECK(refused(R"("rank":3)", R"("rank":9000000)"));
  CHECK(refused(R"("alpha":0.1)", R"("alpha":0)"));
  CHECK(refused(R"("alpha":0.1)", R"("alpha":"0.1")"));
  CHECK(refused(R"("dropout":0.25)", R"("dropout":1)"));
  CHECK(refused(R"("dropout":0.25)", R"("dropout":-0.5)"));
  CHECK(refused(R"("name":"first")", R"("name":"fi.rst")"));
  CHECK(refused(R"("dtype":"float64")", R"("dtype":"float99")"));
}

TEST_CASE("diagnostics are the same after JSON, also where there is no plan") {
  EvaluatedPlan evaluated;
  Diagnostic d = MakeDiagnostic(Finding::kUnknownKey, "no '\x1b[2J'", Place(3));
  d.severity = Severity::kNote;
  d.path = "p";
  d.declared = "d";
  d.required = "r";
  d.help = "h";
  d.related = {Place(1), Place(2)};
  evaluated.diagnostics = {d};
  const JsonValue json = ParseJson(WriteJson(EvaluatedPlanJson(evaluated), 0), "wire").ValueOrThrow();
  const EvaluatedPlan read = ReadEvaluatedPlanJson(json, "wire").ValueOrThrow();
  CHECK(!read.plan);
  REQUIRE(read.diagnostics.size() == 1);
  CHECK(read.diagnostics[0].finding == d.finding);
  CHECK(read.diagnostics[0].severity == d.severity);
  CHECK(read.diagnostics[0].related == d.related);
  CHECK(read.diagnostics[0].ToText() == d.ToText());
}

// Every place of the text with something else in it: never a defect, and never the plan that it was.
TEST_CASE("what is no plan is refused with the member's name") {
  const std::string text = Written(FullPlan());
  const auto said = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const size_t at = other.find(from);
    REQUIRE(at != std::string::npos);
    const Result<Plan> plan = Read(other.replace(at, from.size(), to));
    return plan.ok() ? "a plan" : plan.diagnostics().front().message;
  };
  CHECK(said("\"api\":1", "\"api\":\"1\"") == "not a plan: api: found string, expected an integer");
  CHECK(said("\"api\":1", "\"apy\":1") == "not a plan: 'api' is missing");
  CHECK(said("\"api\":1", "\"api\":1,\"extra\":1") == "not a plan: the object has unknown members");
  CHECK(said("\"api\":1", "\"api\":9999999999") == "not a plan: api: the number is out of range");
  CHECK(said("\"syntax\":2", "\"syntax\":3") == "not a plan: rules: syntax: the number is out of range");
  CHECK(said("\"level\":2", "\"level\":-2") == "not a plan: rules: the level of the rule is negative");
  CHECK(said("\"lookup\":1", "\"lookup\":true") ==
        "not a plan: rules: style: lookup: found boolean, expected an integer");
  CHECK(said("\"owner\":3", "\"owner\":-3").find("a number of the layout is out of range") != std::string::npos);
  CHECK(said("\"zigzag\":false", "\"zigzag\":true").find("a zigzag layout is not a shard") != std::string::npos);
  CHECK(said("\"size\":64", "\"size\":0").find("only some parts have a size") != std::string::npos);
  CHECK(said("\"ids\":2", "\"ids\":1")
            .find("the positions of ids and weights in the route must be different numbers from 0 to 1023") !=
        std::string::npos);
  CHECK(
      said("\"tokens\":3", "\"tokens\":4")
          .find("the positions of tokens, ids and weights in the exchange must be different numbers from 0 to 1023") !=
      std::string::npos);
  for (const auto& [from, to] : {std::pair("\"per_token\":2", "\"per_token\":0"),
                                 {"\"features\":48", "\"features\":0"},
                                 {"\"capacity\":1.25", "\"capacity\":-1"},
                                 {"\"listed\":7", "\"listed\":-1"}}) {
    CHECK(said(from, to).find("a number of the exchange is out of range") != std::string::npos);
  }
  CHECK(said("\"name\":\"full\"", "\"name\":\"\xe2\x82\xac\"") ==
        "not a plan: name: a string has a code point above 255");
  CHECK(Read("null").diagnostics().front().message == "not a plan: found null, expected an object");
  CHECK(Read("{}").diagnostics().front().message == "not a plan: 'name' is missing");
}

}  // namespace
}  // namespace moonshard
