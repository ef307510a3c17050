// ConfigRanges: the largest value of each size in a config.json, in one table. A product of the sizes of one parameter
// is then a number of int64_t, and the modules of a model fit in memory.
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

// Fields with a range of their own, in alphabetical order.
std::span<const ConfigRange> ConfigRanges();
// The largest value of an integer field: that of the table, else 2^31 - 1.
int64_t MostOf(std::string_view field);

// The fields of the table that are above their largest value, in `config` and in the objects in it ("text_config.").
// Errors:
// kUnsupportedModel, with the file, the field, its value and the range.
Diagnostics CheckConfigRanges(const JsonValue& config, const std::string& file_name);

}  // namespace moonshard
