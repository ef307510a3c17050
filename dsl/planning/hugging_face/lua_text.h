// LuaText: translates a Hugging Face plan to a plan file. The rules of the plan file have the same meaning as in
// transformers: the styles are those of stdlib/hugging_face.lua, and the keys match module names as transformers does.
// The plan is `lenient`: what transformers silently ignores (a rule that matches nothing, an unclaimed parameter beside
// sharded ones) is a warning.
// Stage before: plan_file.h. Stage after: dsl/language/eval, as for any plan.
#pragma once

#include <string>
#include <vector>

#include "dsl/planning/hugging_face/plan_file.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

struct LuaPlanText {
  std::string text;
  std::vector<SourceSpan> lines;  // the origin of each line of the text; unknown for lines without an origin
};

// Returns the text of a plan file. `base` is the path of the base model within the model ("model.",
// "model.language_model.", ""): the default of the plan's option `base`, which prefixes every key of a config's table.
// `from` is the name of the Hugging Face file in the first comment of the text.
LuaPlanText WriteLuaPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

// Replace each source location in the text of the plan (a location whose file is `chunk`) by the location in the
// Hugging Face file from which that line was made.
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, SourceSpan& span);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Diagnostics& diagnostics);
void PointToOrigin(const LuaPlanText& text, const std::string& chunk, Plan& plan);

// As WriteLuaPlan, but in the idiom of the plan language, as a file to edit: braces for siblings, numbers of heads if
// the config has them, and styles of stdlib/styles.lua, or of stdlib/hugging_face.lua for a style without an
// equivalent. The result is stricter than the original in two ways: shards are split between heads (heads are
// replicated if there are fewer heads than ranks), and a `*` matches any component. A line that is made from several
// rules refers to the first of them.
LuaPlanText WriteIdiomaticPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

}  // namespace moonshard
