#include "tests/support/changed_json.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard::test {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr size_t kGone = 0;
constexpr size_t kTwice = kJsonChanges.size() - 2;
constexpr size_t kSwapped = kJsonChanges.size() - 1;

void AddPlaces(const JsonValue& value, JsonPlace& here, std::vector<JsonPlace>& all) {
  all.push_back(here);
  const auto add = [&](std::string step, const JsonValue& entry) {
    here.push_back(std::move(step));
    AddPlaces(entry, here, all);
    here.pop_back();
  };
  if (value.is_object()) {
    for (const auto& [key, entry] : value.AsObject()) add(key, entry);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.AsArray().size(); ++i) add(std::to_string(i), value.AsArray()[i]);
  }
}

JsonValue& Entry(JsonValue& container, const std::string& step) {
  if (container.is_object()) return container.AsObject().at(step);
  return container.AsArray().at(std::stoul(step));
}

// What is put in place of any value, by number of the change.
JsonValue Replacement(size_t change) {
  const std::array<JsonValue, kTwice> values = {JsonValue(),
                                                JsonValue(),
                                                JsonValue(true),
                                                JsonValue(""),
                                                JsonValue("x"),
                                                JsonValue::Array(),
                                                JsonValue::Object(),
                                                JsonValue(-1),
                                                JsonValue(0),
                                                JsonValue(1),
                                                JsonValue(2),
                                                JsonValue(5),
                                                JsonValue(int64_t{1} << 31),
                                                JsonValue(int64_t{1} << 53),
                                                JsonValue(int64_t{1} << 62),
                                                JsonValue(kMost),
                                                JsonValue(-kMost - 1),
                                                JsonValue(1e308),
                                                JsonValue(1e-308)};
  return values.at(change);
}

// Whether it was done.
bool ChangeEntry(JsonValue& container, const std::string& step, size_t change) {
  if (container.is_object()) {
    JsonValue::Object& entries = container.AsObject();
    const auto at = entries.find(step);
    if (change == kGone) {
      entries.erase(at);
    } else if (change == kTwice) {
      return entries.emplace(step + ".copy", at->second).second;
    } else {
      const auto next = std::next(at);
      if (next == entries.end()) return false;
      std::swap(at->second, next->second);
    }
    return true;
  }
  JsonValue::Array& entries = container.AsArray();
  const auto at = entries.begin() + static_cast<int64_t>(std::stoul(step));
  if (change == kGone) {
    entries.erase(at);
  } else if (change == kTwice) {
    const JsonValue same = *at;
    entries.insert(at, same);
  } else {
    const auto next = std::next(at);
    if (next == entries.end()) return false;
    std::swap(*at, *next);
  }
  return true;
}

}  // namespace

std::vector<JsonPlace> JsonPlaces(const JsonValue& value) {
  std::vector<JsonPlace> all;
  JsonPlace here;
  AddPlaces(value, here, all);
  return all;
}

JsonValue& ValueAt(JsonValue& whole, const JsonPlace& place) {
  JsonValue* at = &whole;
  for (const std::string& step : place) at = &Entry(*at, step);
  return *at;
}

std::string ToText(const JsonPlace& place, size_t change) {
  return (place.empty() ? "the whole" : Join(place, ".")) + ": " + kJsonChanges.at(change);
}

std::optional<JsonValue> Changed(const JsonValue& whole, const JsonPlace& place, size_t change) {
  Check(change < kJsonChanges.size(), "a change that is in the list");
  const bool of_entry = change == kGone || change == kTwice || change == kSwapped;
  if (place.empty() && of_entry) return std::nullopt;
  JsonValue out = whole;
  if (of_entry) {
    JsonValue& container = ValueAt(out, JsonPlace(place.begin(), place.end() - 1));
    if (!ChangeEntry(container, place.back(), change)) return std::nullopt;
  } else {
    ValueAt(out, place) = Replacement(change);
  }
  if (out == whole) return std::nullopt;
  return out;
}

}  // namespace moonshard::test
