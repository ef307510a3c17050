// LookUpLocalRows: a lookup in a table of which this rank holds only some rows (a vocabulary sharded over ranks). Ids
// of other ranks return rows of zeros, so the sum over the ranks is the lookup in the full table. Used by embedding.h
// and by exported programs.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace moonshard::nn {

// The rows [first, first + rows) of a table of `total` rows.
struct LocalRows {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t total = 0;
};

// weight [rows, dim], indices [...] -> [..., dim]. Ids outside the local rows contribute no gradient. An id outside the
// full table is an error on every rank (on a GPU an asynchronous assertion). `padding`: a row of the full table that
// gets no gradient. `sparse`: as in torch::nn::Embedding, a sparse gradient of the weight.
at::Tensor LookUpLocalRows(const at::Tensor& weight, const at::Tensor& indices, const LocalRows& local,
                           const std::optional<int64_t>& padding, bool sparse);

}  // namespace moonshard::nn
