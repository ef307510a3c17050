#include "engine/analysis/types/of_batch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard {

std::string OfBatch::ToString() const {
  constexpr std::array<std::pair<BatchScale, const char*>, 8> kNames = {{
      {BatchScale::kConstant, "a value that no row of the batch is in"},
      {BatchScale::kRows, "values of single rows"},
      {BatchScale::kTurned, "values of single rows"},
      {BatchScale::kCounted, "values of single rows divided by the number of rows"},
      {BatchScale::kSum, "a sum over the rank's rows"},
      {BatchScale::kMean, "a mean over the rank's rows"},
      {BatchScale::kOwnMean, "a sum over the rank's rows divided by a number that follows these rows"},
      {BatchScale::kOther, "another function of the rank's rows"},
  }};
  std::vector<std::string> out;
  for (const auto& [scale, name] : kNames) {
    if (may_be(scale) && (out.empty() || out.back() != name)) out.emplace_back(name);
  }
  return Join(out, " or ");
}

BufferSet BufferSetOf(size_t buffer) {
  std::vector<uint64_t> words(buffer / 64 + 1, 0);
  words.back() = uint64_t{1} << (buffer % 64);
  return std::make_shared<const std::vector<uint64_t>>(std::move(words));
}

BufferSet Union(const BufferSet& a, const BufferSet& b) {
  if (a == nullptr || a == b) return b;
  if (b == nullptr) return a;
  const auto covers = [](const std::vector<uint64_t>& all, const std::vector<uint64_t>& some) {
    for (size_t w = 0; w < some.size(); ++w) {
      if ((some[w] & ~(w < all.size() ? all[w] : 0)) != 0) return false;
    }
    return true;
  };
  if (covers(*a, *b)) return a;
  if (covers(*b, *a)) return b;
  std::vector<uint64_t> words(std::max(a->size(), b->size()), 0);
  for (size_t w = 0; w < words.size(); ++w) {
    words[w] = (w < a->size() ? (*a)[w] : 0) | (w < b->size() ? (*b)[w] : 0);
  }
  return std::make_shared<const std::vector<uint64_t>>(std::move(words));
}

bool Contains(const BufferSet& set, size_t buffer) {
  return set != nullptr && buffer / 64 < set->size() && (((*set)[buffer / 64] >> (buffer % 64)) & 1) != 0;
}

}  // namespace moonshard
