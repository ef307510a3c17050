// LayoutText: parses the text of a shard that Layout::ToText writes.
#pragma once

#include <optional>
#include <string_view>

#include "engine/layout/layout.h"

namespace moonshard {

// Returns the shard whose ToText() is `text`: "shard(1)", "shard(0,heads=8)", "shard(0,owner=3)", "packed(0,2)",
// "packed(0,[64:heads=8,32])". Returns nullopt for any other text, including the texts of other layouts and numbers
// that overflow their type.
std::optional<Layout> ShardFromText(std::string_view text);

}  // namespace moonshard
