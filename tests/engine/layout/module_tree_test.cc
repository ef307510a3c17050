// Lookups, shared signatures and path classes of a module tree.
#include "engine/layout/module_tree.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

#include "engine/core/base/check.h"

using namespace moonshard;

namespace {

ModuleTree SmallTree() {
  ModuleTree tree;
  tree.Add("", "", {{"scale", {}, DType::kF32}});
  tree.Add("embed", "Embedding", {{"weight", {10, 4}, DType::kBF16}});
  for (const char* layer : {"0", "1", "12"}) {
    tree.Add("layers." + std::string(layer) + ".fc", "Linear",
             {{"weight", {4, 4}, DType::kBF16}, {"bias", {4}, DType::kBF16}});
  }
  tree.Add("layers.x.fc", "Linear", {{"weight", {4, 4}, DType::kBF16}});
  tree.Add("head", "Linear", {{"weight", {10, 4}, DType::kBF16}, {"mask", {7}, DType::kBool, true}}, false);
  ParamRef a;
  ParamRef b;
  REQUIRE(tree.FindParameter("embed.weight", &a));
  REQUIRE(tree.FindParameter("head.weight", &b));
  tree.AddTie({a, b});
  return tree;
}

}  // namespace

TEST_CASE("modules and parameters are found by path") {
  const ModuleTree tree = SmallTree();
  CHECK(tree.Find("embed") == 1);
  CHECK(tree.Find("") == 0);
  CHECK(tree.Find("layers") == -1);
  ParamRef ref;
  REQUIRE(tree.FindParameter("layers.12.fc.bias", &ref));
  CHECK(tree.PathOf(ref) == "layers.12.fc.bias");
  CHECK(tree.At(ref).shape == std::vector<int64_t>{4});
  REQUIRE(tree.FindParameter("scale", &ref));
  CHECK(tree.PathOf(ref) == "scale");
  CHECK(tree.At(ref).elements() == 1);
  CHECK_FALSE(tree.FindParameter("layers.12.fc.gain", &ref));
  CHECK_FALSE(tree.FindParameter("nothing.weight", &ref));
  ModuleTree again = tree;
  CHECK_THROWS_AS(again.Add("embed", "", {}), InternalError);
  CHECK_THROWS_AS(again.AddTie({ref}), InternalError);
}

TEST_CASE("modules alike share a signature, numbered siblings a path class") {
  const ModuleTree tree = SmallTree();
  const auto& modules = tree.modules();
  CHECK(modules[2].signature == modules[4].signature);
  CHECK(modules[2].signature != modules[5].signature);
  CHECK(modules[2].path_class == modules[4].path_class);
  CHECK(modules[2].path_class != modules[5].path_class);
  CHECK(tree.class_representatives()[modules[4].path_class] == 2);
  CHECK(PathClassOf("layers.12.fc") == "layers.0.fc");
  CHECK(PathClassOf("layers.1a.fc") == "layers.1a.fc");
  CHECK(PathClassOf("12") == "0");
  CHECK(PathClassOf("a.7") == "a.0");
  CHECK(PathClassOf("") == "");
}

TEST_CASE("parents, in whatever order modules are added") {
  std::vector<std::string> paths = {"",      "a",     "a.b",   "a.b.c", "a.bc", "a.bc.d",
                                    "x.y.z", "x.y.w", "x.v.z", "lone",  "q.r"};
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    ModuleTree tree;
    for (const std::string& path : paths) tree.Add(path, "", {});
    REQUIRE(tree.parents().size() == paths.size());
    std::map<std::string_view, uint32_t> missing;
    for (size_t m = 0; m < paths.size(); ++m) {
      CAPTURE(round, paths[m]);
      const uint32_t parent = tree.parents()[m];
      const std::string_view path = ParentOf(paths[m]);
      if (paths[m].empty()) {
        CHECK(parent == ModuleTree::kNoParent);
      } else if (const int64_t known = tree.Find(path); known >= 0) {
        CHECK(parent == known);
      } else {
        CHECK(parent >= ModuleTree::kMissingParents);
        CHECK(parent < ModuleTree::kMissingParents + tree.missing_parents());
        CHECK(missing.try_emplace(path, parent).first->second == parent);
      }
    }
    CHECK(missing.size() == 3);  // x.y, x.v, q
    std::shuffle(paths.begin(), paths.end(), random);
  }
}

TEST_CASE("tied tensors count once, buffers not at all") {
  CHECK(SmallTree().total_elements() == 1 + 40 + 3 * 20 + 16);
}

TEST_CASE("a tree's text") {
  ModuleTree tree;
  tree.Add("", "", {{"scale", {}, DType::kF32}});
  tree.Add("a", "Linear", {{"weight", {2, 3}, DType::kBF16}, {"mask", {7}, DType::kBool, true}}, false);
  tree.Add("b", "Linear", {{"weight", {2, 3}, DType::kBF16}});
  tree.AddTie({{1, 0}, {2, 0}});
  CHECK(tree.ToText() ==
        "(root) ? scale:float32[]\n"
        "a Linear (calls cannot be intercepted) weight:bfloat16[2, 3] mask(buffer):bool[7]\n"
        "b Linear weight:bfloat16[2, 3]\n"
        "tied: a.weight b.weight\n");
}
