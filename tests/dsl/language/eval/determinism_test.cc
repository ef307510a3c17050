// The same inputs give the same plan in every state and in every process.
#include <catch2/catch.hpp>
#include <iostream>

#include "tests/dsl/inputs.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

// Keys whose hash order differs between processes, used in the order in which pairs gives them.
const char* kPlan =
    "local rules, seen = {}, {}\n"
    "local blocks = { qkv = 1, o = 2, gate = 3, up = 4, down = 5, norm = 6, [10] = 7, [9] = 8, [2.5] = 9, [true] = 10 "
    "}\n"
    "for key, n in pairs(blocks) do rules[#rules + 1] = at(tostring(key) .. n, replicated()) end\n"
    "for key in next, blocks do seen[#seen + 1] = tostring(key) end\n"
    "for key in pairs(config) do seen[#seen + 1] = key end\n"
    "return plan { rules, at(table.concat(seen, \".\") .. tostring(blocks) .. tostring(plan), replicated()) }\n";

TEST_CASE("200 evaluations in one process are one plan") {
  const std::string first = TextOf(EvaluatePlan(kPlan, "t.lua", LlamaInputs(2)));
  REQUIRE(first.starts_with("plan t api=1\nt.lua:3: at(\"2.59\") replicated\nt.lua:3: at(\"98\")"));
  for (int i = 0; i < 200; ++i) REQUIRE(TextOf(EvaluatePlan(kPlan, "t.lua", LlamaInputs(2))) == first);
}

TEST_CASE("prints a plan", "[.print]") {
  std::cout << "<<" << TextOf(EvaluatePlan(kPlan, "t.lua", LlamaInputs(2))) << ">>";
}

TEST_CASE("20 processes are one plan") {
  const std::string expected = "<<" + TextOf(EvaluatePlan(kPlan, "t.lua", LlamaInputs(2))) + ">>";
  for (int i = 0; i < 20; ++i) {
    const test::Outcome done = test::RunExecutable("/proc/self/exe", {"[.print]"});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    REQUIRE(done.out.find(expected) != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard
