#include "dsl/language/bind/evaluation.h"

#include "dsl/language/bind/values.h"

namespace moonshard {

Evaluation::Evaluation(const PlanInputs& inputs) : inputs_(inputs), state_(inputs.limits) {
  if (inputs_.config.is_null()) inputs_.config = JsonValue::Object{};
  state_.set_owner(this);
}

void Evaluation::Renew(const MeshShape& mesh, std::map<std::string, JsonValue> options) {
  inputs_.mesh = mesh;
  inputs_.options = std::move(options);
  options_.clear();
  old_options_.clear();
  running_.clear();
  made_rules_ = {};
  last_plan_ = {};
  files_ = 0;
  state_.Renew();
}

Evaluation& Evaluation::From(lua_State* L) { return *static_cast<Evaluation*>(ScriptState::From(L).owner()); }

void Evaluation::CountFile() {
  if (++files_ > inputs_.limits.files) {
    state_.RaiseLimit("the plan reads more than " + std::to_string(inputs_.limits.files) + " files", "");
  }
}

void AddBuiltins(lua_State* L) {
  RegisterValues(L);
  AddLayoutBuiltins(L);
  AddStyleBuiltins(L);
  AddRuleBuiltins(L);
  AddSectionBuiltins(L);
  AddPlanBuiltins(L);
  AddOptionBuiltins(L);
  AddInputBuiltins(L);
  AddModelBuiltins(L);
}

}  // namespace moonshard
