// LuaText: a Hugging Face plan as a plan file. Its rules have Hugging Face's meaning to the letter: the styles of
// stdlib/hugging_face.lua, and keys that are compared with names in its way. What transformers passes over in silence
// (a rule that matches nothing, a parameter beside sharded ones that no rule names) is a warning there: `lenient`.
// Stage before: plan_file.h. Stage after: dsl/language/eval, like any plan; idiomatic.h writes the same in the language's own words.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct LuaPlanText {
  std::string text;
  std::vector<SourceSpan> lines;  // where each line of the text comes from; unknown for those that are ours
};

// `base` is where the base model stands in the model ("model.", "model.language_model.", ""): the default of the plan's
// option `base`, which goes before every key of a config's table. `from` names the file, for the comment.
LuaPlanText WriteLuaPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

// Gives every place in the text the place in the Hugging Face file that the line was made from.
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, SourceSpan& span);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Diagnostics& diagnostics);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Plan& plan);

}  // namespace moonshard
