// Documents: rows that hold several documents, one behind the other (packed sequences). Tokens attend within their
// document alone, and positions begin anew at each document, so that a row has the numbers of its documents in rows of
// their own. Equal ids are one document; their values and order mean nothing, and the tokens of a document need not be
// adjacent.
//
// Two numbers are those of the row or the call, as in transformers. A window counts the tokens of the row: of a
// document that is not adjacent it reaches less far than in a row of its own. And longrope (Phi-3) has its long
// frequencies for all documents of a call if the longest one has more than original_max_position_embeddings tokens,
// else the short ones: a short document beside a long one has other numbers than alone, and micro-batches may have
// other numbers than the full batch.
//
// B is the batch, T the sequence length. All of it concerns the full sequence.
// Stage before: decoder.h. Stage after: attention.h (LayerContext::documents), and the loss.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace moonshard {

// Returns the document of each token, int64 [B or 1, T], on the device of `input_ids` [B, T]; undefined: each row is
// one document. These are the first that there are:
//
//   document_ids       integers [B or 1, T]
//   position_ids       [B or 1, T], without `masked` (whether the call has an attention mask): a document begins where
//                      a position is not one more than the one before it. So transformers finds packed sequences
//                      (find_packed_sequence_indices). Undefined if no row has such a place; positions on the meta
//                      device, which have no values, are not looked at.
//
// Throws c10::ValueError if document_ids have another shape, or are not integers (bool is none).
at::Tensor DocumentsOf(const at::Tensor& input_ids, const std::optional<at::Tensor>& document_ids,
                       const std::optional<at::Tensor>& position_ids, bool masked);

// Returns the position of each token in its document, int64 [B or 1, T]: the number of tokens of its document that are
// before it in the row. `documents`: of DocumentsOf, defined.
at::Tensor PositionsIn(const at::Tensor& documents);

// Returns the labels [B, T] without those over a boundary: a label whose document is not that of the token before it,
// which predicts it, becomes -100, which the loss ignores. `document_ids`: integers [B or 1, T]. The first label of a
// row is predicted by no token and stays. Of a document that is not adjacent, the label of its first token behind
// another document is dropped too.
at::Tensor LabelsWithin(const at::Tensor& labels, const at::Tensor& document_ids);

}  // namespace moonshard
