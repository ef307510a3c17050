// LookUpLocalRows: a lookup in a table of which a rank holds some rows (a vocabulary sharded over ranks). Ids of other
// ranks give zero rows, so that the sum over the ranks is the full lookup. Used by embedding.h and by exported
// programs.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace moonshard::nn {

// The table holds rows [first, first + rows) of `total`.
struct LocalRows {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t total = 0;
};

// weight [rows, dim], ids [...] -> [..., dim]. Ids outside the local rows receive no gradient; an id outside the full
// table is an error on every rank. `padding`: a row of the full table that gets no gradient.
at::Tensor LookUpLocalRows(const at::Tensor& weight, const at::Tensor& indices, const LocalRows& local,
                           const std::optional<int64_t>& padding, bool sparse);

}  // namespace moonshard::nn
