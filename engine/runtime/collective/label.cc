#include "engine/runtime/collective/label.h"

#include <utility>

#include "engine/core/base/hash.h"

namespace moonshard {

CollectiveLabel::CollectiveLabel(std::string text) : text_(std::move(text)), hash_(HashOf(text_)) {}

}  // namespace moonshard
