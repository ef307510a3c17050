// TreeFromCheckpoint: makes the module tree from the headers of a checkpoint: the modules that own parameters, with the
// names, shapes and dtypes of the parameters. This is sufficient to match and compile a plan without loading a weight.
// Stage before: checkpoint.h. Stage after: match. The tree of a live model is made by apply.
#pragma once

#include <string_view>

#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// Modules and parameters: a parameter belongs to the module whose path is its name up to the last dot. In a module,
// `weight` comes first, then `bias`, then the others by name. Modules are in the order of their paths, component by
// component, with numbers compared as numbers. The tree is not complete(): a file does not show modules without
// parameters.
//
// Kinds of modules are inferred. With a weight of two dims a module is "Embedding" if the last component of its path
// begins with embed (except embed_out), ends in _embeddings, or is wte, wpe, shared, tokens_embed, word_embedding,
// position_embedding, positions_embed or relative_attention_bias; otherwise "Linear". It is "Norm" if it has a weight
// and all of its tensors have one dim. Any other module has the kind "".
// Tensors that Hugging Face models register as buffers (inv_freq, running_mean, slope_rate, ...) are marked as buffers,
// and so are masks: boolean tensors, and tensors of shape [1, 1, n, n], n > 1, that are not named `weight`.
//
// Ties: if tie_word_embeddings of the config is true, the weight of lm_head is tied to the weight of the embedding
// (embed_tokens, wte, ...), unless the stored weight of lm_head has another shape; a head that is not stored is added.
// The embedding comes first in the tie. The head may be in another module ("5.lm_head") if only one module has the name
// lm_head. The field of an "...encoder-decoder" is that of its decoder, which has the head. If tie_word_embeddings is
// missing, the head is tied if it is not stored and text_config has the field with the value true, or the architecture
// is a "...ForCausalLM" or "...ForConditionalGeneration" and transformers ties the model type by default. The head of a
// classifier ("...Classification") is not tied if it is not stored. If only the bias of a head is stored (BERT,
// RoBERTa, ELECTRA), the weight of the head is tied to that of the embedding, unless tie_word_embeddings is false. If
// the file stores this bias under the name of another module (cls.predictions instead of cls.predictions.decoder), the
// two biases are tied as well. For model types of transformers whose head has another name (T5Gemma's lm_head.out_proj,
// Whisper's proj_out), that is its path. A table `shared` of an encoder and a decoder that have no stored embedding is
// also their embed_tokens: these modules are added, and tied to it; so are the other names of a tensor in ProphetNet,
// T5Gemma 2 and UDOP.
ModuleTree TreeFromCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config);

// Whether the last component of the path is a usual name of the token embedding: embed_tokens, wte, word_embeddings,
// embed_in, embedding, tok_embeddings, tokens_embed, word_embedding, embeddings.
bool NamesTokenEmbedding(std::string_view path);

}  // namespace moonshard
