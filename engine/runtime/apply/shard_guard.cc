#include "engine/runtime/apply/call_guards.h"

#include <algorithm>

#include "engine/core/base/result.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string SizesText(at::IntArrayRef sizes) {
  std::vector<std::string> out;
  for (int64_t size : sizes) out.push_back(std::to_string(size));
  return "[" + Join(out, ", ") + "]";
}

}  // namespace

// Sizes are all that distinguishes a shard from the full tensor after the fact: a tensor does not remember that it was
// cut. A parameter whose shard has the full sizes (one rank, replicated) cannot be told from its full tensor, and
// needs not be.
void ShardGuard::Add(const std::string& path, const at::Tensor& parameter, const std::vector<int64_t>& shape) {
  const std::vector<int64_t> shard = parameter.sizes().vec();
  if (shard != shape) entries_.push_back({path, parameter, shard, shape});
}

// Two passes: at every step only sizes are compared, and texts are made when one of them is wrong.
void ShardGuard::Check() const {
  const auto is_shard = [](const Entry& entry) { return entry.parameter.sizes() == at::IntArrayRef(entry.shard); };
  if (std::ranges::all_of(entries_, is_shard)) [[likely]]
    return;
  constexpr size_t kMost = 10;
  Diagnostics changed;
  for (const Entry& entry : entries_) {
    if (is_shard(entry) || changed.size() == kMost) continue;
    const bool full = entry.parameter.sizes() == at::IntArrayRef(entry.shape);
    Diagnostic d = MakeDiagnostic(Finding::kUnshardedFunction,
                                  full ? "'" + entry.path + "' holds the full tensor in place of this rank's shard"
                                       : "'" + entry.path + "' does not hold this rank's shard any more");
    d.path = entry.path;
    d.declared = SizesText(entry.parameter.sizes()) + ", set after Parallelize, for example by torch::load or set_data";
    d.required = SizesText(entry.shard) + ", this rank's shard of " + SizesText(entry.shape);
    d.help = "load before Parallelize, or use LoadCheckpoint(model, checkpoint), which reads this rank's shards";
    changed.push_back(std::move(d));
  }
  throw PlanError(std::move(changed));
}

}  // namespace moonshard
