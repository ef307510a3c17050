#include "engine/layout/layout_text.h"

#include <charconv>
#include <utility>

namespace moonshard {
namespace {

// More parts of a fused dim than any model has: a number of equal parts is one element each.
constexpr int64_t kMostParts = 1024;

class ShardReader {
 public:
  explicit ShardReader(std::string_view text) : rest_(text) {}

  // ToText() is what decides: whatever else is read here and written otherwise (a "+1", a "01", a heads of 0) is
  // refused.
  std::optional<Layout> Read() {
    const std::string_view text = rest_;
    Layout layout = Layout::Shard(0);
    const bool packed = Skip("packed(");
    if (!packed && !Skip("shard(")) return std::nullopt;
    if (!Number(layout.dim) || !(packed ? Parts(layout) : Whole(layout))) return std::nullopt;
    if (Skip(",inner=") && (!Number(layout.inner) || layout.inner < 2)) return std::nullopt;
    if (!Skip(")") || !rest_.empty() || layout.ToText() != text) return std::nullopt;
    return layout;
  }

 private:
  bool Skip(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  template <class Integer>
  bool Number(Integer& number) {
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) return false;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return true;
  }

  bool Whole(Layout& layout) {
    if (Skip(",heads=")) return Number(layout.heads);
    layout.zigzag = Skip(",zigzag");
    return !Skip(",owner=") || Number(layout.owner);
  }

  bool Parts(Layout& layout) {
    if (!Skip(",")) return false;
    if (!Skip("[")) {
      int64_t count = 0;
      if (!Number(count) || count < 1 || count > kMostParts) return false;
      layout.parts.resize(static_cast<size_t>(count));
      return true;
    }
    do {
      Layout::Part part;
      if (!Number(part.size) || (Skip(":heads=") && !Number(part.heads))) return false;
      layout.parts.push_back(part);
    } while (Skip(","));
    return Skip("]");
  }

  std::string_view rest_;
};

}  // namespace

std::optional<Layout> ShardFromText(std::string_view text) { return ShardReader(text).Read(); }

}  // namespace moonshard
