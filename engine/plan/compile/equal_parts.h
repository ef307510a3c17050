// Equal parts: `packed(dim, n)`, whose sizes follow from the dim.
// Part of resolve.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/plan/compile/resolve.h"

namespace moonshard {

// kPackedDoesNotFit where the layout has equal parts that do not divide `size`. `what`: of the module, for the message.
std::optional<Diagnostic> UnequalParts(const Layout& layout, int64_t size, const Landing& landing,
                                       const std::string& what);

// Gives equal parts of so many features (-1: not known) their sizes. `said`: whether it has been reported already that
// they do not divide them.
void FillEqualParts(int64_t features, const Landing& landing, const std::string& what, bool said,
                    std::optional<Redistribution>& move, Diagnostics& diagnostics);

}  // namespace moonshard
