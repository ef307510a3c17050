// MergeAdapter: a model directory with the adapter added to its weights: W + scale B A in place of W. Other tensors and
// files are those of the model, byte for byte.
// Stages before: a model directory; stored_adapter.h.
#pragma once

#include <string>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/safetensors/checkpoint.h"

namespace moonshard {

// Writes the model directory `out`: the files of the directory of `source` (opened with its bytes), where the weight of
// each module of `adapter` is computed in float64 and rounded once to its dtype. Memory: the two factors of a module
// and a few megabytes. As in convert.h, `out` is complete or unchanged, and an interrupted call resumes; unlike there,
// an `out` that has the content already is written again. Errors: kMissingTensor: the model has no weight for a module;
// kTensorMismatch: of another shape than B A; kNotSupported: a weight that is not float32, float64, bfloat16 or
// float16, or a head or a token embedding that are tied, or one of the directories is inside the other; those of
// ListModelFiles; kFileNotFound, kFileUnreadable, kWriteFailed. They are tied if tie_word_embeddings of config.json is
// true, or if it is missing and the model has no `lm_head.weight`. An error is reported once for each tensor of the
// adapter.
Result<ConvertSummary> MergeAdapter(const Checkpoint& source, const StoredAdapter& adapter, const std::string& out,
                                    const ConvertOptions& options = {});

}  // namespace moonshard
