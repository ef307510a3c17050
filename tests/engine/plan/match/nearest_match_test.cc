// Nearest matches of patterns that match nothing.
#include "engine/plan/match/coverage.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

ModuleTree Tree() {
  ModuleTree tree;
  for (const std::string layer : {"0", "1"}) {
    for (const std::string name : {"gate_proj", "up_proj"}) {
      tree.Add("model.layers." + layer + ".mlp." + name, "Linear", {{"weight", {8, 4}, DType::kF32, false}});
    }
  }
  tree.Add("lm_head", "Linear", {{"weight", {16, 4}, DType::kF32, false}, {"bias", {16}, DType::kF32, false}});
  return tree;
}

std::string Nearest(const std::string& pattern, bool layout = false) {
  Rule rule;
  rule.pattern = pattern;
  if (layout) rule.parameter = Placement(Layout::Shard(0));
  return NearestMatchText(Tree(), rule);
}

std::string DidYouMean(const std::string& pattern, const std::string& count) {
  return "did you mean \"" + pattern + "\"? It matches " + count;
}

TEST_CASE("mistakes that people make with patterns") {
  using Catch::EndsWith;
  CHECK_THAT(Nearest("model.*.gate_proj"), EndsWith(DidYouMean("model.**.gate_proj", "2 modules")));
  CHECK_THAT(Nearest("model/layers/*/mlp/up_proj"), EndsWith(DidYouMean("model.layers.*.mlp.up_proj", "2 modules")));
  CHECK_THAT(Nearest("model.layers.*.mlp.[gate,up]_proj"),
             EndsWith(DidYouMean("model.layers.*.mlp.{gate,up}_proj", "4 modules")));
  CHECK_THAT(Nearest("model.layers.[0-9]+.mlp.up_proj"),
             EndsWith(DidYouMean("model.layers.*.mlp.up_proj", "2 modules")));
  CHECK_THAT(Nearest("layers.*.mlp.up_proj"), EndsWith(DidYouMean("model.layers.*.mlp.up_proj", "2 modules")));
  CHECK_THAT(Nearest("mlp.up_proj"), EndsWith(DidYouMean("model.layers.*.mlp.up_proj", "2 modules")));
  CHECK(Nearest("model.layer.*.mlp.up_proj") ==
        "nearest path: model.layers.0.mlp.up_proj; " + DidYouMean("model.layers.*.mlp.up_proj", "2 modules"));
  CHECK_THAT(Nearest("model.layers.(0|1).mlp.up_proj"),
             EndsWith(DidYouMean("model.layers.{0,1}.mlp.up_proj", "2 modules")));
  CHECK_THAT(Nearest("model.layers.%d+.mlp.up_proj"), EndsWith(DidYouMean("model.layers.*.mlp.up_proj", "2 modules")));
  CHECK_THAT(Nearest(R"(model\.layers\.\d+)"), EndsWith(R"(re[[model\.layers\.\d+]])"));
  CHECK_THAT(Nearest("model.layers.2.mlp.up_proj"), EndsWith(DidYouMean("model.layers.0.mlp.up_proj", "1 module")));
  CHECK(Nearest("transformer.h.*.attn.c_attn") ==
        "modules of the model are, for example: model.layers.0.mlp.gate_proj, model.layers.0.mlp.up_proj, lm_head");
}

TEST_CASE("a pattern of a section that matches nothing: the numbered modules of the model") {
  const ModulePattern blocks{.pattern = "transformer.h.*"};
  const std::vector<std::string_view> paths = {"", "blocks", "blocks.0", "blocks.1", "blocks.0.fc", "head"};
  CHECK(NearestMatchText(paths, blocks) == "the model's numbered modules are blocks.*");
  CHECK(NearestMatchText({"", "fc", "head"}, blocks) == "modules of the model are, for example: fc, head");
}

TEST_CASE("a block owns no parameters: its modules are named, not taken all at once") {
  CHECK(Nearest("model.layers.*.mlp") ==
        "the module at this path owns no parameters itself; it contains gate_proj, up_proj, as in "
        "\"model.layers.*.mlp.gate_proj\"");
  CHECK(Nearest("model.layers.7.mlp").find("gate_proj, up_proj") == std::string::npos);
}

TEST_CASE("a layout is for parameters") {
  CHECK(Nearest("lm_head", true) ==
        "'lm_head' is a module: declare a style for the module, such as colwise {} or replicated {}, or a layout for a "
        "parameter: "
        "\"lm_head.weight\"");
  CHECK(Nearest("lm_head.wieght", true) ==
        "nearest path: lm_head.weight; " + DidYouMean("lm_head.weight", "1 parameter"));
}

}  // namespace
}  // namespace moonshard
