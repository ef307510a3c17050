// VocabularyOf: the vocabulary of a sharded model's logits, for the losses.
// Stage before: applied_plan.h. Stage after: loss/losses.h.
//
//   const Vocabulary vocabulary = VocabularyOf(model, "lm_head").ValueOrThrow();
//   CrossEntropy(vocabulary, net->forward(ids), targets).backward();
//
// is the full loss where the plan leaves the logits sharded, and the same loss without a collective where it gathers
// them.
#pragma once

#include <string>

#include "engine/core/base/result.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/train/loss/vocabulary.h"

namespace moonshard {

// The vocabulary of the output of module `head`: sharded over tp where the plan declares the output shard(-1), else
// full on every rank. Its size is the number of rows of the head's weight.
// Errors: kBadInput where there is no such module or it has no `weight`; kNotSupported for any other layout.
Result<Vocabulary> VocabularyOf(const AppliedPlan& model, const std::string& head, VocabularyOptions options = {});

}  // namespace moonshard
