// VocabularyOf: the vocabulary of a sharded model's logits, for the losses.
// Stage before: applied_plan.h. Stage after: loss/losses.h.
//
//   const Vocabulary vocabulary = VocabularyOf(model, "lm_head").ValueOrThrow();
//   CrossEntropy(vocabulary, net->forward(ids), targets).backward();
//
// The example computes the loss over the full vocabulary. If the plan gathers the logits, the loss needs no collective.
#pragma once

#include <string>

#include "engine/core/base/result.h"
#include "engine/layout/layout.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/train/loss/vocabulary.h"

namespace moonshard {

// Returns the vocabulary of the output of module `head`: sharded over tp if the output is shard(-1), full on every rank
// if the output is replicate. Its size is the number of rows of the head's full weight. Errors: kBadInput if the module
// does not exist or has no parameter `weight`; kNotSupported for an output of any other layout, and for one whose
// tokens are shards on cp (sequence_loss.h).
Result<Vocabulary> VocabularyOf(const AppliedPlan& model, const std::string& head, VocabularyOptions options = {});

// Returns the vocabulary of logits that leave `model` in this layout along tp. `size`: of the full vocabulary. Errors:
// kNotSupported for a layout other than shard(-1), the last dim of logits of three dims, and replicate; `path` names
// the logits in the error.
Result<Vocabulary> VocabularyOf(const AppliedPlan& model, const Layout& logits, int64_t size, const std::string& path,
                                VocabularyOptions options = {});

}  // namespace moonshard
