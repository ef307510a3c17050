#include "engine/runtime/collective/label.h"

#include <utility>

#include <xxhash.h>

namespace moonshard {

uint64_t StableHash(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

CollectiveLabel::CollectiveLabel(std::string text) : text_(std::move(text)), hash_(StableHash(text_)) {}

}  // namespace moonshard
