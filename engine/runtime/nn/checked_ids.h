// CheckIds: the check of the ids of a lookup in a table of which this rank holds only some rows. Used by local_rows.h
// and embedding_bag.h.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace moonshard::nn::detail {

// Throws c10::IndexError if an id is outside of the full table of `total` rows, on every rank alike; on a GPU it is an
// asynchronous assertion.
void CheckIds(const at::Tensor& ids, int64_t total);

}  // namespace moonshard::nn::detail
