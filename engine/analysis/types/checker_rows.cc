// What the checker knows of the rows of the batch at the end of a step: whether the loss fits the reduction of its
// gradients over the data-parallel ranks, and which buffers follow the rows of one rank.
//
// With t_r the loss of rank r and g_r its gradient, the engine makes the mean or the sum of g_r over the ranks. The
// gradient of the loss of all rows is their sum if the loss is a sum over rows, and their mean if it is a mean; a term
// of parameters alone (a weight decay) is the same on every rank, so that its mean is right and its sum is that of as
// many terms as there are ranks.
#include <cmath>
#include <utility>

#include "engine/analysis/types/operator_checker.h"

namespace moonshard {

bool OperatorChecker::IsRowCount(double number) const {
  for (const double rows : row_counts_) {
    const double times = rows > 0 ? number / rows : 0;
    if (times >= 1 - 1e-9 && std::abs(times - std::round(times)) < 1e-9 * times) return true;
  }
  return false;
}

void OperatorChecker::CheckScale(const AxisType& loss, size_t axis) {
  const OfBatch batch = BatchOf(loss);
  read_into_loss_ = Union(read_into_loss_, batch.buffers);
  if (!loss.is_known() || !reduces_mean_) return;
  if (loss.is_replicate() && loss.outside) {
    return NoteUnproven(
        "it is not known that the loss is computed from rows of the batch: declare the tensors of the batch "
        "(TypeScope::Input) before operators use them");
  }
  constexpr uint8_t kSum = Scales(BatchScale::kSum);
  constexpr uint8_t kMean = Scales(BatchScale::kMean, BatchScale::kConstant);
  constexpr uint8_t kNoSum = kMean | Scales(BatchScale::kOwnMean);
  const bool mean = *reduces_mean_;
  if (batch.within(mean ? kMean : kSum)) return;
  const bool wrong = batch.within(mean ? kSum : kNoSum);
  // What is known is not to be declared otherwise.
  if (!wrong && loss_scale_ != LossScale::kFollowed) relied_on_loss_scale_ = true;
  if (!wrong && loss_scale_ == (mean ? LossScale::kMean : LossScale::kSum)) return;
  if (!wrong && loss_scale_ == LossScale::kFollowed) {
    return NoteUnproven("the loss is " + batch.ToString() + ", and its gradients are " +
                        (mean ? "averaged" : "summed") +
                        " over the data-parallel ranks: it is not known whether this is the gradient of the loss of "
                        "all rows; declare what the loss is (TypeOptions::loss_scale, --loss-scale)");
  }
  const bool declared_sum = !wrong && loss_scale_ == LossScale::kSum;
  const bool declared_mean = !wrong && loss_scale_ == LossScale::kMean;
  Blame({TypeFault::Kind::kScale, "", false, axes_[axis].axis, "the loss",
         mean ? "the mean of the ranks' gradients is a fraction of the gradient of the loss of all rows"
              : "the sum of the ranks' gradients is a multiple of the gradient of the loss of all rows",
         mean ? "mean" : "sum",
         declared_sum    ? OfBatch::Of(BatchScale::kSum).ToString()
         : declared_mean ? OfBatch::Of(BatchScale::kMean).ToString()
                         : batch.ToString(),
         loss.since ? *loss.since : ""});
}

void OperatorChecker::RegionMean(const RegionInfo& /*region*/, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  TensorType type = Get(tensor);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (IsDataAxis(axes_[i].axis) && type[i].is_partial()) type[i].batch.scales = Scales(BatchScale::kMean);
  }
  SetType(tensor, std::move(type));
}

void OperatorChecker::SetBuffer(const at::Tensor& leaf, const std::string& path) {
  const auto found = leaves_.find(leaf.unsafeGetTensorImpl());
  if (found == leaves_.end() || !leaf.has_storage()) return;
  const auto [at, fresh] = buffer_of_.try_emplace(leaf.storage().unsafeGetStorageImpl(), buffers_.size());
  if (fresh) buffers_.push_back({path, "", ""});
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (IsDataAxis(axes_[i].axis)) found->second[i].batch.buffers = BufferSetOf(at->second);
  }
}

void OperatorChecker::CheckBuffers() {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    if (buffer.written.empty() || !Contains(read_into_loss_, b)) continue;
    const std::string what =
        "the loss is computed from the buffer '" + buffer.path + "', into which " + buffer.written +
        " writes what follows the rows of one data-parallel rank, so that the ranks have different buffers";
    if (Unproven& entry = unproven_[what]; entry.count++ == 0) entry.first = buffer.where;
  }
}

void OperatorChecker::CheckModelInput(const at::Tensor& tensor, const std::string& what) {
  const TensorType type = Get(tensor);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!IsDataAxis(axes_[i].axis) || !type[i].is_replicate() || !type[i].outside) continue;
    return NoteUnproven(what +
                        " of the model was computed from tensors that are not known to be rows of the batch: declare "
                        "the tensors of the batch (TypeScope::Input) before operators use them");
  }
}

}  // namespace moonshard
