#include "engine/layout/layout.h"

#include <algorithm>

namespace moonshard {
namespace {

std::string ShardText(const Layout& layout, bool with_heads) {
  const std::string dim = std::to_string(layout.dim);
  if (layout.parts.empty()) {
    std::string made_of;
    if (with_heads && layout.heads > 0) made_of = ",heads=" + std::to_string(layout.heads);
    if (with_heads && layout.owner >= 0) made_of = ",owner=" + std::to_string(layout.owner);
    if (layout.zigzag) made_of += ",zigzag";
    if (layout.inner > 1) made_of += ",inner=" + std::to_string(layout.inner);
    return "shard(" + dim + made_of + ")";
  }
  const std::string inner = layout.inner > 1 ? ",inner=" + std::to_string(layout.inner) : "";
  if (layout.has_equal_parts()) return "packed(" + dim + "," + std::to_string(layout.parts.size()) + inner + ")";
  std::string out = "packed(" + dim + ",[";
  for (const Layout::Part& part : layout.parts) {
    if (&part != layout.parts.data()) out += ",";
    out += std::to_string(part.size);
    if (with_heads && part.heads > 0) out += ":heads=" + std::to_string(part.heads);
  }
  return out + "]" + inner + ")";
}

std::string Text(const Layout& layout, bool with_heads) {
  switch (layout.kind) {
    case LayoutKind::kReplicate: return "replicate";
    case LayoutKind::kShared: return layout.last > 0 ? "shared_last(" + std::to_string(layout.last) + ")" : "shared";
    case LayoutKind::kPartial: return "partial";
    case LayoutKind::kShard: return ShardText(layout, with_heads);
  }
  return "replicate";
}

}  // namespace

bool Layout::has_equal_parts() const {
  return !parts.empty() && std::ranges::all_of(parts, [](const Part& part) { return part.size == 0; });
}

Layout Layout::Sized(int64_t size) const {
  Layout sized = *this;
  if (!has_equal_parts()) return sized;
  const auto count = static_cast<int64_t>(parts.size());
  const int64_t most = (size + count - 1) / count;
  int64_t left = size;
  for (Part& part : sized.parts) {
    part.size = std::min(most, left);
    left -= part.size;
  }
  return sized;
}

std::string Layout::ToString() const { return Text(*this, false); }
std::string Layout::ToText() const { return Text(*this, true); }

bool Placement::only_tp() const {
  for (MeshAxis axis : kMeshAxes) {
    if (axis != MeshAxis::kTp && (*this)[axis] != Layout::Replicate()) return false;
  }
  return true;
}

std::string Placement::ToText() const {
  if (only_tp()) return (*this)[MeshAxis::kTp].ToText();
  std::string out;
  for (MeshAxis axis : kMeshAxes) {
    const Layout& layout = (*this)[axis];
    if (layout == Layout::Replicate()) continue;
    out += (out.empty() ? "{" : ", ") + std::string(ToString(axis)) + ": " + layout.ToText();
  }
  return out + "}";
}

}  // namespace moonshard
