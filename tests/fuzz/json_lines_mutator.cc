// Mutations for libFuzzer of an input with a JSON value on each line: half of them are libFuzzer's own, of bytes. The
// others change one place of a line's value (tests/support/changed_json.h), or copy a value there from another place.
#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "engine/core/base/text.h"
#include "tests/fuzz/target.h"
#include "tests/support/changed_json.h"

// libFuzzer's names.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);

namespace moonshard::fuzz {
namespace {

std::optional<std::string> Mutated(std::string_view text, std::minstd_rand& random) {
  const auto below = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  std::vector<std::string> lines = Split(text, '\n');
  std::string& line = lines[below(lines.size())];
  const auto parsed = [&](const std::string& one) {
    Diagnostics ignored;
    return ParseJson(one, "line").Collect(ignored);
  };
  std::optional<JsonValue> value = parsed(line);
  std::optional<JsonValue> source = parsed(lines[below(lines.size())]);
  if (!value || !source) return std::nullopt;
  const std::vector<test::JsonPlace> places = test::JsonPlaces(*value);
  const test::JsonPlace& place = places[below(places.size())];
  if (below(2) == 0) {
    value = test::Changed(*value, place, below(test::kJsonChanges.size()));
    if (!value) return std::nullopt;
  } else {
    const std::vector<test::JsonPlace> sources = test::JsonPlaces(*source);
    test::ValueAt(*value, place) = test::ValueAt(*source, sources[below(sources.size())]);
  }
  line = WriteJson(*value, 0);
  return Join(lines, "\n");
}

}  // namespace
}  // namespace moonshard::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using namespace moonshard::fuzz;
  std::minstd_rand random(seed);
  random.discard(1);  // neighbouring seeds begin alike
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::optional<std::string> mutated = Mutated(TextOf(data, size), random);
  if (!mutated || mutated->size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::ranges::copy(*mutated, data);
  return mutated->size();
}
