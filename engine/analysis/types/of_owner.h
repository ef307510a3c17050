// Tensors that one rank has (AxisType::owner): what follows from shards with an owner where no rule finds the dim that
// they shard, as behind a softmax along this dim.
//
// The owner computes from them, and from tensors that all ranks have, what one rank computes. The other ranks have no
// elements, or zeros of the owner's sizes, which are terms of a sum. Which of the two it is shows on the other ranks
// alone: there the types are strict, and a proof is one of all ranks (prove/type_scope.h).
// Stage before: axis_type.h, operands.h. Stage after: operator_checker.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <c10/util/ArrayRef.h>

#include "engine/analysis/types/operands.h"

namespace moonshard {

// Returns the rank that has all of a tensor of type `type`, a shard with an owner or AxisType::owner; -1: no such rank.
int64_t OwnerOf(const AxisType& type);

// Returns the owner of all tensors that are not replicated; -1: there are none, or they differ between ranks in
// another way.
int64_t OneOwner(c10::ArrayRef<AxisType> types);

// Changes, in the types of an operator's operands, the tensors of an owner that are terms of a sum to partial: on other
// ranks those with elements, and on the owner all, if an operand differs between ranks in another way. `rank`: this
// rank.
void TakeAsTerms(c10::ArrayRef<Operand> operands, int64_t rank, std::span<AxisType> types);

// Makes shards with an owner AxisType::owner in the types of an operator's operands, for a second judgement by OfOwner:
// if all that is not replicated has one owner, or if another rank than the owner makes no elements of such shards and
// of others. What the operator does with elements shows on the owner. Returns whether a type has changed.
bool AsOfOwner(const Operands& o, std::span<AxisType> types);

// Whether another rank than the owner makes no elements of a shard with an owner and of something that is neither a
// shard nor replicated: what the rank has of the latter, such as terms of a sum, would be lost.
bool MeetsTermsElsewhere(const Operands& o, std::span<const AxisType> types);

// Returns the types of what an operator makes of tensors of one owner and of replicated tensors. Reports `why` as
// unproven, if the other ranks make elements of theirs that are not known to be zeros.
AxisTypes OfOwner(Operands& o, const std::string& why);

}  // namespace moonshard
