// Every example of dsl/README.md evaluates.
#include <catch2/catch.hpp>

#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"

namespace moonshard {
namespace {

TEST_CASE("the examples of the language's page are plans") {
  const std::string page = ReadWholeFile(MOONSHARD_SOURCE_DIR "/dsl/README.md");
  const std::string open = "```lua\n";
  const ModuleTree tree = SmallLlama();
  int examples = 0;
  for (size_t at = 0; (at = page.find(open, at)) != std::string::npos; ++examples) {
    at += open.size();
    const std::string text = page.substr(at, page.find("```", at) - at);
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    const Result<Plan> plan = EvaluatePlan(text, "example.lua", inputs);
    INFO(text << TextOf(plan));
    CHECK(plan.ok());
    CHECK((plan.ok() && !plan.value().rules.empty()));
  }
  CHECK(examples == 13);
}

TEST_CASE("the page names every style key and every style of stdlib") {
  const std::string page = ReadWholeFile(MOONSHARD_SOURCE_DIR "/dsl/README.md");
  for (const char* word : {"name",          "params",    "vectors",       "kinds",
                           "inputs",        "outputs",   "after",         "heads",
                           "lookup",        "bare",      "route",         "missing",
                           "colwise",       "rowwise",   "vocab_rowwise", "sequence_parallel",
                           "norm_on",       "rotary_on", "replicated",    "prepare_input",
                           "prepare_output"}) {
    INFO(word);
    CHECK(page.find("`" + std::string(word) + "`") != std::string::npos);
  }
}

}  // namespace
}  // namespace moonshard
