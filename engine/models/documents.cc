#include "engine/models/documents.h"

#include <tuple>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

namespace moonshard {
namespace {

constexpr int64_t kIgnored = -100;

// bool [B or 1, T - 1]: whether the token behind a token is of another document.
at::Tensor Ends(const at::Tensor& documents) { return documents.slice(1, 1).ne(documents.slice(1, 0, -1)); }

}  // namespace

at::Tensor DocumentsOf(const at::Tensor& input_ids, const std::optional<at::Tensor>& document_ids,
                       const std::optional<at::Tensor>& position_ids, bool masked) {
  if (document_ids) {
    const at::Tensor& ids = *document_ids;
    TORCH_CHECK_VALUE(at::isIntegralType(ids.scalar_type(), /*includeBool=*/false) && ids.dim() == 2 &&
                          (ids.size(0) == 1 || ids.size(0) == input_ids.size(0)) && ids.size(1) == input_ids.size(1),
                      "document_ids are ", ids.scalar_type(), " ", ids.sizes(),
                      ", and must be integers [B or 1, T] of ", input_ids.sizes(), " tokens");
    return ids.to(input_ids.device(), at::kLong);
  }
  if (!position_ids || masked || position_ids->is_meta() || position_ids->size(1) < 2) return {};
  const at::Tensor begins = position_ids->slice(1, 1).sub(position_ids->slice(1, 0, -1)).ne(1);
  if (!begins.any().item<bool>()) return {};
  return at::constant_pad_nd(begins.cumsum(1), {1, 0}).to(input_ids.device());
}

// Tokens sorted by document, those of one document in the order of the row: the position of a token is its place in
// this order, less the place of the first token of its document.
at::Tensor PositionsIn(const at::Tensor& documents) {
  const auto [sorted, tokens] = at::sort(documents, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const at::Tensor places = at::arange(documents.size(1), documents.options()).expand_as(documents);
  const at::Tensor begins = at::constant_pad_nd(Ends(sorted), {1, 0});
  const at::Tensor first = std::get<0>(at::cummax(places * begins, 1));
  return at::empty_like(documents).scatter_(1, tokens, places - first);
}

at::Tensor LabelsWithin(const at::Tensor& labels, const at::Tensor& document_ids) {
  if (labels.size(1) < 2) return labels;
  return labels.masked_fill(at::constant_pad_nd(Ends(document_ids), {1, 0}), kIgnored);
}

}  // namespace moonshard
