// The report's data and page without a browser: equal subtrees once, every shard where it is, nothing that ends the
// page early.
#include "engine/plan/report/report.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/plan/report/report_data.h"
#include "tests/support/compiled_mlp.h"

namespace moonshard {
namespace {

using test::CompileMlp;
using test::Mesh;

std::string Shards(const std::vector<int64_t>& shape, const Placement& placement, const std::string& mesh) {
  return WriteJson(ShardsJson(shape, placement, Mesh(mesh)), 0);
}

TEST_CASE("shards of a dim") {
  CHECK(Shards({5, 4}, Layout::Shard(0), "tp=2") == R"([{"axes":["tp"],"of":2,"shards":[[[0,3]],[[3,2]]]},null])");
  CHECK(Shards({2, 4}, Layout::Shard(0), "tp=3") == R"([{"axes":["tp"],"of":3,"shards":[[[0,1]],[[1,1]],[]]},null])");
  CHECK(Shards({8}, Layout::Packed(0, {{4, 0}, {4, 0}}), "tp=2") ==
        R"([{"axes":["tp"],"of":2,"shards":[[[0,2],[4,2]],[[2,2],[6,2]]]}])");
  CHECK(Shards({4, 4}, Layout::Shard(0), "tp=1") == "[null,null]");
  Placement both = Layout::Shard(0);
  both[MeshAxis::kDpShard] = Layout::Shard(0);
  // tp cuts first; the places run over dp_shard and, fastest, tp.
  CHECK(Shards({8}, both, "dp=2,tp=2") ==
        R"([{"axes":["dp_shard","tp"],"of":4,"shards":[[[0,2]],[[4,2]],[[2,2]],[[6,2]]]}])");
  const std::string many = Shards({1000}, Layout::Shard(0), "tp=100");
  CHECK(many.find("\"of\":100") != std::string::npos);
  CHECK(static_cast<int64_t>(std::ranges::count(many, ',')) < 3 * kMostShards);
}

TEST_CASE("equal layers are one node, and what differs is not") {
  const auto tree = [](const std::string& last) {
    std::string text = "model Model\n";
    for (int i = 0; i < 4; ++i) {
      text += "model.layers." + std::to_string(i) + ".fc Linear weight:float32[8, 4]\n";
    }
    return std::make_shared<const ModuleTree>(TreeFromText(text + last));
  };
  const auto fold = [](const std::shared_ptr<const ModuleTree>& of, const char* recomputed) {
    auto plan = std::make_shared<Plan>();
    CompiledPlan compiled = ResolvePlan(plan, of, Mesh("tp=1")).ValueOrThrow();
    if (recomputed != nullptr) compiled.recomputed = {recomputed};
    std::string labels;
    for (const FoldedNode& node : FoldTree(compiled).nodes) {
      for (const FoldedNode::Child& child : node.children) {
        labels += child.label + "*" + std::to_string(child.copies) + " ";
      }
    }
    return labels;
  };
  CHECK(fold(tree(""), nullptr) == "fc*1 {0..3}*4 layers*1 model*1 ");
  CHECK(fold(tree("model.layers.4.fc Linear weight:float32[9, 4]\n"), nullptr) ==
        "fc*1 fc*1 {0..3}*4 4*1 layers*1 model*1 ");
  CHECK(fold(tree(""), "model.layers.2") == "fc*1 fc*1 {0,1,3}*3 2*1 layers*1 model*1 ");
}

TEST_CASE("the collectives of the data are those of the totals") {
  const CompiledPlan plan = CompileMlp("tp=2");
  const JsonValue data = ReportData(plan, {"mlp", 0, Tokens{2, 8}});
  CollectiveCounts counts;
  for (const JsonValue& call : data.Find("calls")->AsArray()) {
    const bool forward = call.Find("direction")->AsString() == "forward";
    REQUIRE(call.Find("kind")->AsString() == "all_reduce");
    for (int64_t i = 0; i < call.Find("copies")->AsInt(); ++i) {
      counts.Add(forward ? Direction::kForward : Direction::kBackward, CollectiveKind::kAllReduce,
                 call.Find("bytes")->AsInt());
    }
  }
  CHECK(counts == TotalsOf(plan, 0, Tokens{2, 8}).collectives);
}

TEST_CASE("every collective of the data names what it is of") {
  const auto tree = std::make_shared<const ModuleTree>(
      TreeFromText("(root) Model\ngate Linear weight:float32[4, 8]\nexperts Experts up:float32[4, 6, 8]\n"));
  auto plan = std::make_shared<Plan>();
  Rule rule;
  rule.pattern = "experts";
  rule.style.name = "experts";
  Placement& up = rule.style.params["up"];
  up = Placement(Layout::Shard(1));
  up[MeshAxis::kEp] = Layout::Shard(0);
  rule.style.inputs.emplace_back(Redistribution{Placement(), Placement(Layout::Shared())});
  rule.style.outputs.emplace_back(Redistribution{Placement(Layout::Partial()), Placement()});
  rule.style.exchange = Exchange{.tokens = 0, .ids = 1, .weights = 2, .per_token = 2, .features = 8};
  plan->rules.push_back(rule);
  plan->fallback = Style{};
  plan->data_parallel = DataParallel{};
  plan->data_parallel->wrap = {{"gate", PatternSyntax::kGlob, {}}};
  const CompiledPlan compiled = ResolvePlan(plan, tree, Mesh("dp=2,ep=2,tp=2")).ValueOrThrow();
  std::map<std::string, std::set<std::string>> kinds;
  const JsonValue data = ReportData(compiled, {"experts", 0, Tokens{1, 8}});
  for (const JsonValue& call : data.Find("calls")->AsArray()) {
    kinds[call.Find("of")->AsString()].insert(call.Find("kind")->AsString());
  }
  CHECK(kinds == std::map<std::string, std::set<std::string>>{{"input", {"all_reduce"}},
                                                              {"output", {"all_reduce"}},
                                                              {"exchange", {"all_to_all"}},
                                                              {"exchange counts", {"all_to_all"}},
                                                              {"gradients", {"all_reduce"}},
                                                              {"unit", {"all_gather", "reduce_scatter"}}});
}

TEST_CASE("memory by rank adds up, equal neighbours in one row") {
  const auto memory = [](const CompiledPlan& plan) { return WriteJson(*ReportData(plan, {}).Find("memory"), 0); };
  // Three matrices of 10 x 4 and float32, and of the uneven ones 7 x 4.
  CHECK(memory(CompileMlp("tp=2")) == R"([{"count":2,"first":0,"full":0,"ranks":"0..1","sharded":240}])");
  CHECK(
      memory(CompileMlp("tp=2", 7)) ==
      R"([{"count":1,"first":0,"full":0,"ranks":"0","sharded":192},{"count":1,"first":1,"full":0,"ranks":"1","sharded":144}])");
}

TEST_CASE("no name ends the page's data early, and the page is the same in every run") {
  const CompiledPlan plan = CompileMlp("tp=2");
  const ReportOptions options = {"</script><b>", 0, std::nullopt};
  const std::string page = ReportHtml(plan, options);
  CHECK(page.find("</script><b>") == std::string::npos);
  CHECK(page.find("\\u003c/script>\\u003cb>") != std::string::npos);
  CHECK(page == ReportHtml(plan, options));
  // Nor does one reach a terminal, where the page goes to stdout.
  const std::string hostile = ReportHtml(plan, {"a\xC2\x9B"
                                                "31m\xE2\x80\xAE\xE2\x80\x8B",
                                                0, std::nullopt});
  for (const char* raw : {"\xC2\x9B", "\xE2\x80\xAE", "\xE2\x80\x8B"}) CHECK(hostile.find(raw) == std::string::npos);
  CHECK(hostile.find("a\\u009b31m\\u202e\\u200b") != std::string::npos);
  for (const char* mark : {"/*STYLE*/", "/*SCRIPT*/", "/*DATA*/", "http://", "https://"}) {
    INFO(mark);
    CHECK((page.find(mark) == std::string::npos || page.find("http://www.w3.org/2000/svg") == page.find(mark)));
  }
}

}  // namespace
}  // namespace moonshard
