// TryNode: the trial of one operator: what its results are, in full and on the ranks. Internal to
// engine/models/program/trial.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/program/trial/made_up.h"
#include "engine/models/program/trial/site.h"

namespace moonshard::trial {

struct Tried {
  enum class Kind : uint8_t {
    kNot,    // no draw was run: the operator refuses made-up operands, or its results are empty
    kHolds,  // the ranks' results are the full one, slices of it, or terms of it
    kFails,
  };
  using Memory = std::vector<std::optional<size_t>>;
  Kind kind = Kind::kNot;
  std::string why;  // of kFails: what differs
  // Of kHolds: parallel to the node's outputs. Unknown: elements that a mask selects, of which the ranks have others.
  std::vector<Spread> spreads;
  std::vector<RankNumber> numbers;  // likewise
  std::vector<Spread> written;      // parallel to NodeCall::writes(): what the operands hold afterwards
  Memory of;                        // for each output: the index of the operand whose memory it has
  std::vector<Drawing> drawings;    // that were run
};

// Runs the operator in full and on every rank, on each draw of its operands (DrawingsOf): first in float64, then, if
// the operator refuses that, in the dtypes of the program. Every spread of the site must be known.
Tried TryNode(const Site& site);

// Calls the operator of the site; on a rank as the engine calls it there. `rank`: -1 for the full operator.
std::vector<c10::IValue> CallOn(const Site& site, const std::vector<c10::IValue>& given, int64_t rank);

}  // namespace moonshard::trial
