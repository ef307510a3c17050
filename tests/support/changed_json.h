// A JSON value with one thing in it changed: for readers of files that somebody has edited. Every place of a value (a
// container or a leaf, the whole one among them) times every change of a list that holds what readers get wrong:
// nothing, other kinds, numbers at the ends of what their readers compute with, an entry twice, two entries in each
// other's place.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard::test {

inline constexpr std::array<const char*, 21> kJsonChanges = {
    "gone", "null",   "true",  "\"\"",  "\"x\"",  "[]",    "{}",
    "-1",   "0",      "1",     "2",     "5",      "2^31",  "2^53",
    "2^62", "2^63-1", "-2^63", "1e308", "1e-308", "twice", "swapped with the next"};

// The way from the whole value: keys of objects, indices of arrays.
using JsonPlace = std::vector<std::string>;

// Every place, in the order of a walk from the whole one (an empty way).
std::vector<JsonPlace> JsonPlaces(const JsonValue& value);

// What is at a place that JsonPlaces returned for this value.
JsonValue& ValueAt(JsonValue& whole, const JsonPlace& place);

// "layouts.0.shape.1: 2^31".
std::string ToText(const JsonPlace& place, size_t change);

// `whole` with one change at one place; nothing where it would be the same value, or cannot be made there. Of an
// object's entry "twice" is a second one under another name, "swapped" exchanges the values of two keys.
std::optional<JsonValue> Changed(const JsonValue& whole, const JsonPlace& place, size_t change);

}  // namespace moonshard::test
