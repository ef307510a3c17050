// OwnLoss: whether the loss that an exported program returns is the mean cross-entropy of the next tokens
// (CausalLmLoss), which `eval` and `train` can compute from the program's logits; and the program without it.
// Stage before: engine/io/exported_program. Used by dsl/commands.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/core/base/diagnostic.h"
#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

enum class OwnLoss : uint8_t {
  kNone,        // the program returns no loss, or no logits
  kNextTokens,  // CausalLmLoss of the logits and labels
  kOther,       // another loss of the logits and labels: targets that are not shifted, a sum, smoothed labels
  kOfMore,      // a loss that depends on more than logits and labels: auxiliary terms, a mask
};

// Returns the kind of the program's loss. Finds the values from which the graph computes the loss. If these are only
// logits and labels, and the operators only move them and compute a cross-entropy that ignores labels of -100, computes
// the program's loss and CausalLmLoss for generated logits and labels (one label is -100) of the example's shape, and
// compares the two losses. Any other operator (a mask, a bound of the logits) makes the loss kOther. Needs no weights,
// and the result does not depend on a plan.
// Throws PlanError if the operators of the loss cannot be compiled.
OwnLoss OwnLossOf(const ExportedProgram& program);

// Returns the error (kNotSupported) for a program with a loss other than CausalLmLoss; nullopt for kNone and
// kNextTokens. Throws as OwnLossOf.
std::optional<Diagnostic> OwnLossDiffers(const ExportedProgram& program);

// Returns whether the loss of every archive of the program is kNextTokens. Throws as OwnLossOf.
bool HasNextTokenLoss(const ExportedProgram& program);

// Returns the program without its output "loss" and without the operators from which only the loss is computed, so that
// a caller that computes CausalLmLoss from the logits (HasNextTokenLoss) does not compute the loss twice, and may have
// a plan that leaves the logits sharded. The labels stay an input, which the graph does not use. Returns nullptr if the
// program is not a causal language model (IsCausalLm), or if the loss of one of its archives depends on more than
// logits and labels, or is computed in a branch.
std::shared_ptr<const ExportedProgram> WithoutLoss(const ExportedProgram& program);

}  // namespace moonshard
