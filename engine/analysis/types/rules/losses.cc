// Losses: (values, targets, ...), reduced to a mean, a sum or not at all.
//
// Rows of the batch are independent, so sharded rows give a partial sum, or a partial mean if the loss divides by the
// number of local elements. The mean of cross entropy divides by the weights of the targets that are not ignored, of
// which each rank has others: no average over the ranks is that mean. The classes of a row are not independent: targets
// are global class indices, and a rank would look up another class in its shard. Losses on a sharded vocabulary are
// regions (train/loss).
#include <algorithm>
#include <bit>

#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

constexpr int64_t kNone = 0;
constexpr int64_t kMean = 1;

AxisType Reduced(Operands& o, const AxisType& rows, int64_t reduction) {
  if (reduction == kNone) return rows;
  if (std::popcount(rows.local) > 1)
    return o.Unproven("a loss of constants that are as long as a shard along two dims");
  if (rows.is_replicate()) return rows.local != 0 && reduction != kMean ? AxisType::Partial() : OfNewValues(rows);
  if (!rows.is_shard()) return rows;
  return reduction == kMean ? MeanOfShards(o, rows) : AxisType::Partial();
}

// nll_loss_forward(log-probabilities [N, C], targets [N], weight, reduction, ignored) -> loss, total weight.
AxisTypes NegativeLogLikelihood(Operands& o) {
  const AxisType& x = o.type(0);
  const AxisType& targets = o.type(1);
  if (targets.is_partial())
    return {o.Fault("the targets are partial; reduce the targets first", SuggestedFix::kMakeSum)};
  if (o.Any(TypeKind::kVarying) || o.Any(TypeKind::kOwnRows)) return {AxisType::Of(TypeKind::kVarying)};
  const int64_t reduction = o.Int(3, kMean);
  if (const int weight = o.TensorOf(2); weight >= 0 && !o.type(static_cast<size_t>(weight)).is_replicate())
    return {o.Fault("the weights of the classes are not replicated; each rank needs the weights of all classes")};
  const int classes = o.dims(0) == 1 ? 0 : 1;
  if (x.is_shard() && x.dim == classes) {
    return {o.Fault(
        "the targets are global class indices, but the class dim of the values is sharded; all-gather the class dim "
        "or use a vocabulary-parallel loss")};
  }
  if (x.is_partial()) return {x, AxisType::Replicate()};
  const bool either = x.is_shard() && targets.is_replicate() && targets.uniform_along(x.dim);
  if (x.is_shard() != targets.is_shard() && !either)
    return {o.Fault("the values and the targets are not sharded in the same way")};
  if (x.is_shard() && targets.is_shard()) {
    AxisType rows = x;  // without the classes
    if (rows.dim > classes) --rows.dim;
    if (!rows.SameAs(targets)) return {o.Fault("the values and the targets are not sharded in the same way")};
    if (!MeetMaps(o, rows, targets)) {
      return {AxisType::Of(o.fault().empty() ? TypeKind::kUnproven : TypeKind::kFaulty)};
    }
  }
  if (x.is_replicate() && (x.local != 0 || targets.local != 0))
    return {o.Unproven("no rule for a constant that is as long as a shard")};
  if (!x.is_shard()) return {x, OfNewValues(x)};
  const AxisType loss = Reduced(o, x, reduction);
  if (reduction != kMean || !loss.is_known()) return {loss, AxisType::Partial()};
  return {o.Unproven("the mean divides by the number or weights of the rank's targets that are not ignored, which may "
                     "differ between ranks; use a sum, and divide by the total of all ranks"),
          AxisType::Partial()};
}

// (gradient, values, targets, weight, reduction, ignored, total weight).
AxisTypes NegativeLogLikelihoodBackward(Operands& o) {
  if (o.type(0).is_partial())
    return {
        o.type(1).is_replicate()
            ? o.type(0)
            : o.Fault(
                  "a partial gradient is combined with tensors that differ between ranks; reduce the gradient first",
                  SuggestedFix::kMakeSum)};
  if (o.Any(TypeKind::kVarying)) return {AxisType::Of(TypeKind::kVarying)};
  if (o.type(0).is_shard() && !o.type(1).is_shard())
    return {o.Fault("the gradient and the values are not sharded in the same way")};
  return {OfNewValues(o.type(1))};
}

// (values, targets, weight?, ..., reduction, ...), element by element.
AxisTypes Elementwise(Operands& o) {
  int64_t dims = 0;
  for (size_t i = 0; i < o.size(); ++i) dims = std::max(dims, o.dims(i));
  return {Reduced(o, Meet(o, AllOperands(o), dims, Dependence::kAny), o.Int(o.Named("reduction"), kMean))};
}

// (gradient, values, targets, weight?, ...).
AxisTypes ElementwiseBackward(Operands& o) {
  c10::SmallVector<Meeting, 4> meeting = AllOperands(o);
  if (!o.type(0).is_partial()) {
    const AxisType result = Meet(o, meeting, o.made_dims(), Dependence::kAny);
    if (result.local != 0 && o.Int(o.Named("reduction"), kMean) == kMean)
      return {o.Unproven("the gradient of a mean of constants that are as long as a shard")};
    return {result};
  }
  meeting.erase(meeting.begin());
  const AxisType values = Meet(o, meeting, o.made_dims(), Dependence::kAny);
  return {
      values.is_replicate()
          ? o.type(0)
          : o.Fault("a partial gradient is combined with tensors that differ between ranks; reduce the gradient first",
                    SuggestedFix::kMakeSum)};
}

}  // namespace

void AddLossRules(RuleTable& table) {
  table.AddAten({"nll_loss_forward", "nll_loss2d_forward"}, NegativeLogLikelihood);
  table.AddAten({"nll_loss_backward", "nll_loss2d_backward"}, NegativeLogLikelihoodBackward);
  table.AddAten({"mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"}, Elementwise);
  table.AddAten(
      {"mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward"},
      ElementwiseBackward);
}

}  // namespace moonshard
