// Two exchanges, in this order, so that every error is one of all ranks and none of them waits in a collective:
//
//   the call      which inputs there are and how many rows each has, compared with those of the other ranks. The
//                 comparison of the outermost call (input_signature.h) has the sizes and not the names of optional
//                 inputs. A rank whose inputs do not fit its ids has another text than one whose inputs do; where no
//                 rank's fit, the texts may be equal, and every rank throws its own error.
//   the lengths   of which every rank sees all, so that all compute the same T, or all throw.
//
// The inputs are then rows of one int64 tensor [R, t], gathered along the sequence by one all-gather: shard ->
// replicate of redistribute.h, which has the order of zigzag and shards of different sizes. T is noted as the size of
// dim 1 of the call, which otherwise the slice in front of the embedding would do: the logits are gathered, and heads
// exchanged, without an exchange of sizes.
#include "engine/runtime/apply/axis_inputs.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "engine/core/base/text.h"
#include "engine/layout/shards.h"
#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/recorded_sequence.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {
namespace {

using Inputs = OwnInputs::Optional;

struct NamedInput {
  const char* name;
  std::optional<at::Tensor> Inputs::*member;
  bool integers;  // whether other values are an error
};
constexpr std::array kInputs = {
    NamedInput{"attention_mask", &Inputs::attention_mask, false},
    NamedInput{"position_ids", &Inputs::position_ids, true},
    NamedInput{"document_ids", &Inputs::document_ids, true},
};

bool Fits(const at::Tensor& input, const at::Tensor& ids, bool integers) {
  if (ids.dim() != 2 || input.dim() != 2 || input.size(1) != ids.size(1)) return false;
  if (integers && !at::isIntegralType(input.scalar_type(), /*includeBool=*/false)) return false;
  return input.size(0) == 1 || input.size(0) == ids.size(0);
}

// Equal on ranks whose calls fit one another.
std::string SignatureOf(const at::Tensor& ids, const Inputs& inputs) {
  std::string out =
      ids.dim() == 2 ? std::to_string(ids.size(0)) + " rows of input_ids" : "input_ids " + ShapeToString(ids.sizes());
  for (const NamedInput& one : kInputs) {
    const std::optional<at::Tensor>& input = inputs.*one.member;
    if (!input) continue;
    out += std::string(", ") + one.name;
    out += Fits(*input, ids, one.integers) ? " of " + std::to_string(input->size(0))
                                           : " " + ShapeToString(input->sizes()) + " that does not fit";
  }
  return out;
}

Diagnostic Misfit(const std::string& path, const std::string& name, const at::Tensor& input, const at::Tensor& ids) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "'" + name + "' does not fit this rank's own tokens");
  d.path = path;
  d.declared = std::string(c10::toString(input.scalar_type())) + " " + ShapeToString(input.sizes()) + ", input_ids " +
               ShapeToString(ids.sizes());
  d.required = name == "attention_mask" ? "a number for each token of input_ids, [B or 1, t]"
                                        : "an integer for each token of input_ids, [B or 1, t]";
  return d;
}

std::vector<int64_t> LengthsOf(const Layout& tokens, int64_t length, int64_t ranks) {
  const DimShards shards = DimShards::Make(tokens, length, ranks).ValueOrThrow();
  std::vector<int64_t> out;
  for (int64_t rank = 0; rank < ranks; ++rank) out.push_back(shards.length(rank));
  return out;
}

}  // namespace

int64_t SequenceLength(AxisGroup& group, const Layout& tokens, int64_t own, const CollectiveLabel& label,
                       bool recording) {
  const int64_t ranks = group.size();
  const std::optional<std::vector<int64_t>> recorded =
      recording ? RecordedSequence::TokensOf(group, own) : std::nullopt;
  const std::vector<int64_t> lengths = recorded ? *recorded : group.ExchangeNumbers(own, label);
  const int64_t length = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const std::vector<int64_t> required = LengthsOf(tokens, length, ranks);
  if (lengths == required) return length;
  // Without peers and a declared sequence: of those of which this rank has its tokens, the shortest.
  for (int64_t other = std::max<int64_t>(own, 1); recording && other <= 2 * ranks * (own + 1); ++other) {
    if (LengthsOf(tokens, other, ranks)[static_cast<size_t>(group.rank())] == own) return other;
  }
  Diagnostic d = MakeDiagnostic(Finding::kCollectiveMismatch,
                                "the ranks of " + group.name() + " do not have the tokens of " + tokens.ToText());
  d.path = label.text();
  d.declared = "own tokens of lengths " + ShapeToString(lengths);
  d.required = "lengths " + ShapeToString(required) + " of a sequence of " + std::to_string(length) +
               " tokens; TokenShards (engine/train/loss/sequence_loss.h) takes a rank's own tokens from the full rows";
  throw PlanError({std::move(d)});
}

AxisInputs::AxisInputs(std::shared_ptr<AxisGroup> group, const Layout& tokens, const std::string& path, bool recording)
    : group_(std::move(group)), tokens_(tokens), label_("the inputs of " + ModuleName(path)), recording_(recording) {}

OwnInputs::Full AxisInputs::Gather(const at::Tensor& input_ids, const Optional& inputs) const {
  group_->StartCheckInputs(CollectiveLabel(SignatureOf(input_ids, inputs)), label_);
  group_->FinishCheck();
  Diagnostics errors;
  if (input_ids.dim() != 2) errors.push_back(Misfit(label_.text(), "input_ids", input_ids, input_ids));
  std::vector<at::Tensor> rows;
  for (const NamedInput& one : kInputs) {
    const std::optional<at::Tensor>& input = inputs.*one.member;
    if (!input) continue;
    if (!Fits(*input, input_ids, one.integers)) {
      errors.push_back(Misfit(label_.text(), one.name, *input, input_ids));
    } else {
      rows.push_back((one.integers ? *input : input->ne(0)).to(input_ids.device(), at::kLong));
    }
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
  Full out;
  out.length = SequenceLength(*group_, tokens_, input_ids.size(1), label_, recording_);
  CallFrame::NoteSize(*group_, 1, out.length);
  if (rows.empty()) return out;
  const TensorRedistribution gather =
      TensorRedistribution::Make(tokens_, Layout::Replicate(), group_, {out.length, -1, label_.text(), 1})
          .ValueOrThrow();
  const at::Tensor full = gather(at::cat(rows, 0));
  int64_t first = 0;
  for (const NamedInput& one : kInputs) {
    const std::optional<at::Tensor>& input = inputs.*one.member;
    if (!input) continue;
    out.inputs.*one.member = full.narrow(0, first, input->size(0));
    first += input->size(0);
  }
  return out;
}

}  // namespace moonshard
