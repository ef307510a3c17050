#include "engine/graph/call_tree.h"

#include <catch2/catch.hpp>

namespace moonshard::program {
namespace {

// A node for each stack of paths, in their order.
ExportedProgram WithStacks(const std::vector<std::vector<std::string>>& stacks) {
  ExportedProgram out;
  for (const std::vector<std::string>& paths : stacks) {
    std::vector<ModuleCall>& stack = out.stacks.emplace_back();
    for (const std::string& path : paths) stack.push_back({path, "Layer", 0});
    ProgramNode& node = out.graph.nodes.emplace_back();
    node.target = "aten::relu";
    node.stack = static_cast<int32_t>(out.stacks.size()) - 1;
  }
  return out;
}

TEST_CASE("a call with a node of another one in it is torn, and the calls inside of it are not") {
  const CallTree tree = FindCalls(WithStacks({{"a", "a.b"}, {"c"}, {"a", "a.d"}, {"a", "a.d"}}));
  CHECK(tree.torn == std::vector<std::string>{"a@0"});
  CHECK(tree.calls.size() == 4);  // the root, a.b, c, a.d
}

TEST_CASE("a graph of torn calls takes no longer than its nodes") {
  constexpr int kCalls = 20'000;
  std::vector<std::vector<std::string>> stacks;
  for (int i = 0; i < 2 * kCalls; ++i) stacks.push_back({"whole", std::to_string(i % kCalls)});
  const CallTree tree = FindCalls(WithStacks(stacks));
  CHECK(tree.torn.size() == kCalls);
  REQUIRE(tree.calls.size() == 2);
  CHECK(tree.calls[1].module == "whole");
  CHECK(tree.calls[1].items.size() == 2 * kCalls);
}

}  // namespace
}  // namespace moonshard::program
