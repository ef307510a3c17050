#include "engine/core/base/join_first.h"

#include <algorithm>

#include "engine/core/base/text.h"

namespace moonshard {

std::string JoinFirst(std::span<const std::string> parts, size_t most) {
  const size_t shown = std::min(most, parts.size());
  const std::string more = shown < parts.size() ? " and " + std::to_string(parts.size() - shown) + " more" : "";
  return Join(parts.first(shown), ", ") + more;
}

}  // namespace moonshard
