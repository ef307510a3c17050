// PlainLoss: the operators from which the usual loss of a causal language model is computed.
// Stage before: engine/io/exported_program. Stage after: program_checks.h and engine/models/own_loss.h.
#pragma once

#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

// Returns whether the node only moves, casts, shifts or scales what it is given, or is the cross-entropy of labels, of
// which those of -100 are ignored. Where only such nodes make a loss, no value of a logit or label is treated in a way
// of its own, so that one comparison of numbers tells which loss it is.
bool IsOfPlainLoss(const ProgramNode& node);

}  // namespace moonshard
