// LuaText: a Hugging Face plan as a plan file. Its rules have exactly the meaning of Hugging Face: the styles of
// stdlib/hugging_face.lua, and keys that match names in the same way. What transformers silently ignores (a rule that
// matches nothing, an unclaimed parameter beside sharded ones) is a warning: `lenient`. Stage before: plan_file.h.
// Stage after: dsl/language/eval, like any plan.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct LuaPlanText {
  std::string text;
  std::vector<SourceSpan> lines;  // the origin of each line of the text; unknown for generated ones
};

// `base` is the path of the base model within the model ("model.", "model.language_model.", ""): the default of the
// plan's option `base`, which prefixes every key of a config's table. `from` names the file, for the comment.
LuaPlanText WriteLuaPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

// Replaces every place in the text by the place in the Hugging Face file that its line was made from.
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, SourceSpan& span);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Diagnostics& diagnostics);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Plan& plan);

// A Hugging Face plan in the idiom of the plan language: braces for siblings, heads where the config has
// them, styles of stdlib/styles.lua, and those of stdlib/hugging_face.lua for what has no other. The result is a file
// to edit. It is stricter than the original in two ways: shards are split between heads (fewer heads than ranks are
// replicated), and a `*` matches any component. Stage before: plan_file.h.
// As WriteLuaPlan. A line made of several rules refers to the first of them.
LuaPlanText WriteIdiomaticPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

}  // namespace moonshard
