// Every file of tests/cases/sandbox is a script that tries to hang, to grow, to escape or to confuse. Its first line
// names the finding it must end in ("--- expect: MS0109"), or ok. Each ends within two seconds of CPU time (wall time
// would measure what else the machine does).
#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>

#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"

namespace moonshard {
namespace {

const std::string kFolder = MOONSHARD_SOURCE_DIR "/tests/cases/sandbox/";

std::string Expected(const std::string& text) {
  const std::string head = "--- expect: ";
  return text.starts_with(head) ? text.substr(head.size(), text.find('\n') - head.size()) : "MS0101";
}

TEST_CASE("scripts that try to hang, grow or escape") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  CHECK(names.size() > 90);
  for (const std::string& name : names) {
    const std::string text = ReadWholeFile(kFolder + name);
    const std::clock_t start = std::clock();
    const Result<Plan> plan = EvaluatePlan(text, name, LlamaInputs(2));
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    INFO(name << ": " << TextOf(plan));
    CHECK(seconds < 2.0);
    if (Expected(text) == "ok") {
      CHECK(plan.ok());
    } else {
      REQUIRE(!plan.ok());
      CHECK(std::ranges::any_of(plan.diagnostics(),
                                [&](const Diagnostic& d) { return InfoOf(d.finding).id == Expected(text); }));
    }
  }
}

TEST_CASE("a text longer than allowed is not read") {
  const std::string text = "return plan {} --" + std::string(size_t{1} << 20, '-');
  CHECK(TextOf(EvaluatePlan(text, "long.lua", LlamaInputs(2))) ==
        "long.lua: error[MS0101]: the text has 1048593 bytes; at most 1048576 are read\n");
}

TEST_CASE("a script cannot reach the next evaluation") {
  const std::string text = "return plan { at(\"a\", colwise {}) }";
  const std::string before = TextOf(EvaluatePlan(text, "t.lua", LlamaInputs(2)));
  CHECK(!EvaluatePlan("string.rep = nil; colwise = nil; shard = nil; plan = nil", "bad.lua", LlamaInputs(2)).ok());
  CHECK(TextOf(EvaluatePlan(text, "t.lua", LlamaInputs(2))) == before);
}

}  // namespace
}  // namespace moonshard
