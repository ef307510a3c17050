// LayoutText: the text of a shard, read back. Layout::ToText writes it.
#pragma once

#include <optional>
#include <string_view>

#include "engine/layout/layout.h"

namespace moonshard {

// The shard whose ToText() is `text`: "shard(1)", "shard(0,heads=8)", "shard(0,owner=3)", "packed(0,2)",
// "packed(0,[64:heads=8,32])". Nothing for every other text, also for other layouts and for numbers beyond their types.
std::optional<Layout> ShardFromText(std::string_view text);

}  // namespace moonshard
