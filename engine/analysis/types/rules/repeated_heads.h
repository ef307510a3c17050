// The type of keys and values with fewer heads than the queries after attention has repeated them (grouped queries).
#pragma once

#include "engine/analysis/types/axis_type.h"

namespace moonshard {

// Each rank repeats a head as often as it has queries for it. Keys whose ranks would repeat their heads in different
// numbers keep their type.
AxisType RepeatedFor(const AxisType& queries, const AxisType& keys);

}  // namespace moonshard
