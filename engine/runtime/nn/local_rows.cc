#include "engine/runtime/nn/local_rows.h"

#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/checked_ids.h"

namespace moonshard::nn {

// An id outside the table would be masked on every rank and silently give a zero row. On a GPU the check must not wait
// for the device, so it is an assertion there.
void detail::CheckIds(const at::Tensor& ids, int64_t total) {
  if (ids.device().is_cpu() && ids.numel() > 0) {
    const Region region("the check of ids", "", MeshAxis::kTp);
    const auto [smallest, largest] = at::aminmax(ids);
    TORCH_CHECK_INDEX(smallest.item<int64_t>() >= 0 && largest.item<int64_t>() < total,
                      "index out of range: an id is outside the table of ", total, " rows");
  } else if (!ids.is_meta()) {
    at::_assert_async(ids.ge(0).logical_and_(ids.lt(total)).all());
  }
}

// The vocabulary-parallel lookup of Megatron-LM: shift ids to local rows, look up masked ids in row 0, zero their
// results. The mask comes behind the lookup, so that masked ids send no gradient to row 0 either. Every step keeps the
// shape of the ids, so all ranks run the same operators.
at::Tensor LookUpLocalRows(const at::Tensor& weight, const at::Tensor& indices, const LocalRows& local,
                           const std::optional<int64_t>& padding, bool sparse) {
  Check(weight.size(0) == local.rows, "the weight of a lookup must have exactly the rows that SetLocalRows declared");
  detail::CheckIds(indices, local.total);
  // at::embedding refuses a table without rows (fewer rows than ranks).
  if (local.rows == 0) {
    std::vector<int64_t> shape = indices.sizes().vec();
    shape.push_back(weight.size(1));
    return at::zeros(shape, weight.options()) + weight.sum();  // adds nothing; the weight stays part of the graph
  }
  // padding_idx is one of the full table's rows; at::embedding needs it as a local row, and only on the rank that has
  // it.
  const bool holds_padding = padding && *padding >= local.first && *padding < local.first + local.rows;
  const at::Tensor shifted = indices - local.first;
  NoteOwnRows(shifted, weight);
  const at::Tensor elsewhere = shifted.lt(0).logical_or_(shifted.ge(local.rows));
  const at::Tensor rows =
      at::embedding(weight, shifted.masked_fill(elsewhere, 0), holds_padding ? *padding - local.first : -1,
                    /*scale_grad_by_freq=*/false, sparse);
  return rows.masked_fill(elsewhere.unsqueeze(-1), 0);
}

}  // namespace moonshard::nn
