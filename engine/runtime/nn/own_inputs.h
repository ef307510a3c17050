// OwnInputs: the inputs of a model on a rank that has only its own tokens of the sequence: context parallelism with
// `inputs = "own"` (stdlib/transformer.lua). A rank computes its own tokens from its own ids, but positions, padding
// and documents of the other ranks' tokens are needed too, and its own positions depend on the length of the full
// sequence:
//
//   positions    under "ulysses" a rank rotates heads of all tokens; the documents that position_ids show, and the
//                frequencies of longrope, depend on the positions of all tokens under a ring as well
//   padding,     attention has the keys of all tokens: under "ulysses" in one mask, on a ring block by block
//   documents
//
// So the model calls Gather at the beginning of its forward, and continues with the length and the inputs of the full
// sequence and with its own ids. The inputs that a caller passes are integers, one for each token, so that they are
// small beside keys and values. Stage after: apply (AxisInputs), which has the group of the ranks; models/decoder.h,
// which calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

namespace moonshard {

class OwnInputs {
 public:
  // The inputs of a call, each [B or 1, t] of this rank's tokens, or [B or 1, T] of the full sequence.
  struct Optional {
    std::optional<at::Tensor> attention_mask;  // nonzero at tokens
    std::optional<at::Tensor> position_ids;    // integers
    std::optional<at::Tensor> document_ids;    // integers
  };
  struct Full {
    int64_t length = 0;  // T
    Optional inputs;     // int64, those that the call has
  };

  virtual ~OwnInputs() = default;
  // Returns the length of the full sequence and the full inputs, in the order of the sequence. `input_ids` [B, t]: of
  // this rank's tokens, in the order of its shard; t may be 0. Collective over the ranks of cp, within a call of the
  // model: two exchanges on the CPU (of the call, and of the lengths), and if there are optional inputs, one all-gather
  // of them. Errors, as
  // PlanError on every rank and before the all-gather: kCollectiveMismatch if the ranks differ in the batch, in which
  // optional inputs they have or in the rows of these, or if the numbers of their tokens are not those that the layout
  // of the tokens gives a sequence; kBadInput if an input does not fit the ids.
  virtual Full Gather(const at::Tensor& input_ids, const Optional& inputs) const = 0;
};

// A module whose forward can have the inputs of its rank's own tokens. A class derived from it calls OwnInputs::Gather
// in its forward. Applying a plan with such inputs requires one in the model.
class TakesOwnInputs {
 public:
  virtual ~TakesOwnInputs() = default;
  // The inputs are those of this rank's own tokens; nullptr: of the full sequence.
  virtual void SetOwnInputs(std::shared_ptr<const OwnInputs> inputs) = 0;
};

}  // namespace moonshard
