// TreeFromCheckpoint: the module tree that the headers of a checkpoint determine: the modules that own parameters, with
// names, shapes and dtypes. Enough to match and compile a plan without loading a weight.
// Stage before: checkpoint.h. Stage after: match. A live model's tree is made by apply.
#pragma once

#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// A parameter belongs to the module whose path is its name up to the last dot; in a module `weight` comes first, then
// `bias`, then the others by name. Modules are in the order of their paths, component by component, numbers as numbers.
// The tree is not complete(): modules without parameters leave no trace in a file.
//
// Kinds are guessed: "Embedding" for a path whose last component begins with embed (but for embed_out) or ends in
// _embeddings, or is wte, wpe or relative_attention_bias; "Linear" for a weight of two dims; "Norm" where there is only
// a weight of one dim, with or without a bias; else "". What HF models register as buffers (inv_freq, running_mean,
// ...) is marked as such, and so are masks: tensors of truth values, and those of shape [1, 1, n, n] that are not a
// weight.
//
// Ties: where the config's tie_word_embeddings is true, lm_head.weight is the embedding's weight, stored or not; a
// head that is not stored is added. It may be in another module ("5.lm_head") where no other is called so. The
// embedding (embed_tokens, wte, ...) comes first in the tie. Where the field is missing the head is tied if the
// architecture is a "...ForCausalLM" or "...ForConditionalGeneration" that transformers ties by default and the file
// has no head. A classifier's head is not tied. Of a head whose bias alone is stored (BERT, RoBERTa, ELECTRA) the
// weight is the embedding's unless the field is false; its bias is tied to the module's that the file has it in.
ModuleTree TreeFromCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace moonshard
