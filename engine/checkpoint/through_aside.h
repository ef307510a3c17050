// How shard and merge write their folder: through an Aside, going on where an earlier process was, and leaving what is
// there already. Stage before: what would be written is known. Stage after: aside.h.
#pragma once

#include <functional>
#include <string>

#include "engine/checkpoint/aside.h"
#include "engine/checkpoint/convert.h"

namespace moonshard {

struct AsideWork {
  std::function<bool()> is_there;        // whether the place holds just what would be written
  std::function<Failure(Aside&)> write;  // all of the folder, and its Commit
};

// `summary` with was_there set where nothing had to be written. What is wrong goes to `found`, which the answer takes;
// `write` may add to it too. Errors: those of Aside::Open and of `write`.
Result<ConvertSummary> WriteThroughAside(const std::string& place, const AsideOptions& options, const AsideWork& work,
                                         ConvertSummary& summary, Diagnostics& found);

}  // namespace moonshard
