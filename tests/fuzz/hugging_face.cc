// Plans of Hugging Face, in every form they are read in: JSON, Python dicts, Python source. What is read is written as
// a plan file, to the letter and idiomatic, which is valid Lua and evaluates.
#include "dsl/planning/choose/hugging_face_plan.h"

#include "dsl/planning/hugging_face/lua_text.h"
#include "tests/dsl/inputs.h"
#include "tests/fuzz/target.h"

namespace moonshard {
namespace {

bool Evaluated(const LuaPlanText& text, const PlanInputs& inputs) {
  const Result<Plan> plan = EvaluateHuggingFacePlan(text, "fuzz", inputs);
  for (const Diagnostic& d : plan.diagnostics()) {
    fuzz::Require(d.finding != Finding::kSyntax && d.finding != Finding::kUnknownName,
                  "the plan file that was made is not valid: " + d.ToText() + "\n" + text.text);
  }
  return plan.ok();
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const Result<HuggingFaceFile> file = ReadHuggingFacePlans(fuzz::TextOf(data, size), "fuzz.py");
  if (!file.ok()) return 0;
  const PlanInputs inputs = LlamaInputs(2);
  for (const std::string key : {"", "ep"}) {
    const Result<HuggingFaceChoice> choice = ChooseHuggingFacePlan(file.value(), key, inputs.config);
    if (!choice.ok()) continue;
    const LuaPlanText exact = WriteLuaPlan(choice.value(), "model.", "fuzz.py");
    if (Evaluated(exact, inputs)) Evaluated(WriteIdiomaticPlan(choice.value(), "model.", "fuzz.py"), inputs);
  }
  return 0;
}
