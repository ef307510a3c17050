#include "dsl/eval/choose_plan.h"
#include "dsl/eval/load_plan.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"

namespace moonshard {
namespace {

const std::string kGoldens = MOONSHARD_SOURCE_DIR "/tests/cases/plans/";

TEST_CASE("the built-in plans as text") {
  for (const std::string& name : BuiltInPlans()) {
    PlanInputs inputs = LlamaInputs(2);
    CheckGolden(kGoldens + name + ".txt", TextOf(LoadPlanFile(name, inputs)));
    inputs.options = {{"sequence_parallel", true}, {"loss_parallel", "true"}};
    CheckGolden(kGoldens + name + ".sequence_parallel.txt", TextOf(LoadPlanFile(name, inputs)));
  }
}

TEST_CASE("every architecture in the index has a plan that evaluates") {
  for (const std::string architecture : {"LlamaForCausalLM", "MistralForCausalLM"}) {
    const JsonValue config = JsonValue::Object{{"architectures", JsonValue::Array{architecture}}};
    const Result<std::string> name = SelectPlan(config);
    REQUIRE(name.ok());
    CHECK(LoadPlanFile(name.value(), LlamaInputs(1)).ok());
  }
}

TEST_CASE("an architecture without a plan names those that have one") {
  const JsonValue config = JsonValue::Object{{"architectures", JsonValue::Array{"GPT2LMHeadModel"}}};
  CHECK(ToText(SelectPlan(config).diagnostics()) ==
        "error[MS0112]: no plan for the architecture 'GPT2LMHeadModel'\n"
        "    help: there are plans for LlamaForCausalLM, MistralForCausalLM; a plan file of your own can be named "
        "instead\n");
}

}  // namespace
}  // namespace moonshard
