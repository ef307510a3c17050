// RoutedRows: what an exchange of tokens between ranks declares of its rows, to handlers of operators that follow them.
// The rows of a batch go to the ranks that have their experts and come back, and no Layout describes them in between.
//
//   const RegionInfo info = {"exchange of tokens", label, MeshAxis::kEp};
//   Region region(info.name, info.label, info.axes);
//   at::Tensor rows = ...;
//   DeclareRouted(info, tokens, rows);
//
// If no scope is open, a declaration costs one read of a thread-local pointer.
// Stage before: operator_scope.h, region.h. Stage after: redistribute; types, which checks what is computed from the
// rows; meta, which knows the number of rows of an expert from the range of the ids.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "engine/runtime/intercept/region.h"

namespace moonshard {

// An OperatorHandler that derives from this class too receives the declarations.
class RoutedRowsHandler {
 public:
  virtual ~RoutedRowsHandler() = default;
  virtual void RowsSent(const RegionInfo& /*region*/, const at::Tensor& /*from*/, const at::Tensor& /*rows*/) {}
  virtual void RowsReturned(const RegionInfo& /*region*/, const at::Tensor& /*rows*/, const at::Tensor& /*tokens*/,
                            const at::Tensor& /*result*/) {}
  virtual void ExpertIds(const at::Tensor& /*ids*/, int64_t /*first*/, int64_t /*count*/) {}
  virtual std::optional<std::pair<int64_t, int64_t>> RangeOfIds(const at::Tensor& /*ids*/) { return std::nullopt; }
  virtual void Groups(const at::Tensor& /*rows*/) {}
};

// Declares that the ranks of the region's axis have sent rows of `from`, [N, F] or [N, k, F], to the ranks that have
// their experts, and that `rows` [R, F] are those that this rank has received. Call at the end of the open region
// `region`.
void DeclareRouted(const RegionInfo& region, const at::Tensor& from, const at::Tensor& rows);
// Declares that `result`, [N, F] or [N, k, F], consists of `rows` [R, F], or of sums of them, which are back on the
// ranks of their tokens. `tokens` has an element along dim 0 for each token; in a backward it is undefined, and dim 0
// of `result` is that of the batch. `rows` is undefined if the experts of this rank have returned nothing. Call at the
// end of the open region `region`.
void DeclareReturned(const RegionInfo& region, const at::Tensor& rows, const at::Tensor& tokens,
                     const at::Tensor& result);
// Declares that `ids` are ids of `count` experts, of which the first has the id `first`.
void NoteExpertIds(const at::Tensor& ids, int64_t first, int64_t count);
// What NoteExpertIds has declared of these ids, as first id and number; nullopt: nothing, or no scope is open.
std::optional<std::pair<int64_t, int64_t>> ExpertIdsIn(const at::Tensor& ids);
// Declares that values, as of expert ids, have chosen the elements of `rows` along dim 0 and grouped them, and that
// every later split along this dim, of `rows` or of what is indexed with them, takes the groups by their sizes: the
// sizes follow the values, and are those of no shard. Call right behind the operator that chose them.
void NoteGroups(const at::Tensor& rows);

}  // namespace moonshard
