// Idiomatic: a Hugging Face plan in the words of this language: braces for siblings, heads where the model's config names
// them, styles of stdlib/styles.lua; and the words of stdlib/hugging_face.lua for what has no other. A file to go on from.
// The words are this language's, so two things are better than in Hugging Face: shards are cut between heads (fewer heads
// than ranks are replicated), and a `*` stands for any component.
// Stage before: plan_file.h.
#pragma once

#include "dsl/planning/hugging_face/lua_text.h"

namespace moonshard {

// As WriteLuaPlan. Lines of several rules come from the first of them.
LuaPlanText WriteIdiomaticPlan(const HuggingFaceChoice& choice, const std::string& base, const std::string& from);

}  // namespace moonshard
