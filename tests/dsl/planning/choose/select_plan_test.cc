#include "dsl/planning/choose/choose_plan.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

JsonValue ConfigOf(const std::string& type, const std::string& architecture) {
  return JsonValue::Object{{"model_type", type}, {"architectures", JsonValue::Array{architecture}}};
}

TEST_CASE("the index knows classes by their bare names") {
  CHECK(SelectPlan(ConfigOf("llama", "LlamaForCausalLM")).value() == "llama");
  CHECK(SelectPlan(ConfigOf("", "Qwen3ForSequenceClassification")).value() == "qwen3");
  CHECK(SelectPlan(JsonValue::Object{{"_class_name", "WanTransformer3DModel"}}).value() == "wan");
}

TEST_CASE("a qualified name goes before the bare one") {
  CHECK(SelectPlan(ConfigOf("nemotron-nas", "DeciLMForCausalLM")).value() == "nemotron_nas");
  CHECK(SelectPlan(ConfigOf("deci", "DeciLMForCausalLM")).value() == "decilm");
}

TEST_CASE("an architecture without a plan names those that have one") {
  const Result<std::string> none = SelectPlan(ConfigOf("xlnet", "XLNetLMHeadModel"));
  const std::string text = ToText(none.diagnostics());
  CHECK_THAT(text, Catch::StartsWith("error[MS0112]: no plan for the architecture 'XLNetLMHeadModel'\n"
                                     "    help: there are plans for BaiChuanForCausalLM, "));
  CHECK_THAT(text, Catch::Contains("LlamaForCausalLM"));
}

}  // namespace
}  // namespace moonshard
