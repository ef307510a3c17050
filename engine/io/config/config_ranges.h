// ConfigRanges: a table of the largest allowed value of each size in a config.json. Within these limits the product of
// the sizes of a parameter fits into int64_t, and the modules of a model fit in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"

namespace moonshard {

struct ConfigRange {
  std::string_view field;
  int64_t most = 0;
};

// Returns the fields that have their own limit, in alphabetical order.
std::span<const ConfigRange> ConfigRanges();
// Returns the largest allowed value of an integer field: the limit in the table, else 2^31 - 1.
int64_t MostOf(std::string_view field);

// Returns kUnsupportedModel, with the file, the field, its value and the limit, for every field of the table that is
// above its limit, in `config` and in the objects within `config` (for example "text_config").
Diagnostics CheckConfigRanges(const JsonValue& config, const std::string& file_name);

}  // namespace moonshard
