// OwnLoss: whether the loss that an exported program returns is the mean cross-entropy of the next tokens, which `eval`
// and `train` compute from its logits.
// Stage before: engine/io/exported_program. Used by dsl/commands.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/base/diagnostic.h"
#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

enum class OwnLoss : uint8_t {
  kNone,        // the program returns no loss, or no logits
  kNextTokens,  // CausalLmLoss of its logits and labels
  kOther,       // of its logits and labels, but another one: targets that are not shifted, a sum, smoothed labels
  kOfMore,      // it depends on more than logits and labels: auxiliary terms, a mask
};

// Reads which values the loss is computed from, and where these are logits and labels alone, computes it and
// CausalLmLoss for made-up logits and labels (one of them ignored) of the example's shape. No weights are needed, and
// the plan does not matter. Throws PlanError where the operators of the loss cannot be run.
OwnLoss OwnLossOf(const ExportedProgram& program);

// The error (kNotSupported) of a program with a loss that is not CausalLmLoss; nothing for kNone and kNextTokens.
std::optional<Diagnostic> OwnLossDiffers(const ExportedProgram& program);

}  // namespace moonshard
