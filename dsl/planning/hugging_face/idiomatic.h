// Idiomatic: a Hugging Face plan in the idiom of the plan language: braces for siblings, heads where the config has
// them, styles of stdlib/styles.lua, and those of stdlib/hugging_face.lua for what has no other. The result is a file
// to edit. It is stricter than the original in two ways: shards are split between heads (fewer heads than ranks are
// replicated), and a `*` matches any component. Stage before: plan_file.h.
#pragma once

#include "dsl/planning/hugging_face/lua_text.h"

namespace moonshard {

// As WriteLuaPlan. A line made of several rules refers to the first of them.
LuaPlanText WriteIdiomaticPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

}  // namespace moonshard
