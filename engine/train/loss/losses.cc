// Every loss here is a function of a few statistics of a row (local_softmax.h), and each rank has those of its columns.
// One all-gather of the statistics gives every rank the full row's, from which all of them compute the same value: the
// loss is replicated without a second collective. The gradient of a rank's logits needs its own logits and the row's
// statistics alone, so the backward communicates nothing.
//
// An all-gather instead of all-reduces: the maximum and the sums would take two dependent reductions (the sums need the
// common maximum), and gathered terms are added in rank order, which gives every rank the same bits.
//
// The forward is computed without gradients, and the tape is one node a loss (Record). Autograd through the operators
// would keep the softmax of all columns for the backward, which recomputes it from the logits and two numbers per row
// instead.
#include "engine/train/loss/losses.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/text.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/redistribute/redistribute.h"
#include "engine/train/loss/local_softmax.h"

namespace moonshard {

namespace autograd = torch::autograd;

namespace {

Diagnostic BadInput(const std::string& message, const std::string& declared, const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.declared = declared;
  d.required = required;
  return d;
}

Diagnostics CheckLogits(const Vocabulary& vocabulary, const ShardedLogits& logits) {
  Diagnostics errors;
  switch (logits.dtype()) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf: break;
    default:
      errors.push_back(BadInput("the losses do not support the dtype of the logits", c10::toString(logits.dtype()),
                                "double, float, bfloat16 or half"));
  }
  // In a larger group the collective compares it, so that every rank throws the same error.
  if (vocabulary.group().size() == 1 && logits.columns() != vocabulary.size()) {
    errors.push_back(BadInput("the number of columns of the logits differs from the size of the vocabulary",
                              std::to_string(logits.columns()) + " columns",
                              std::to_string(vocabulary.size()) + " columns"));
  }
  return errors;
}

void CheckTargets(const ShardedLogits& logits, const at::Tensor& targets, Diagnostics& errors) {
  if (!targets.defined()) {
    errors.push_back(BadInput("there are no targets", "an undefined tensor", "a tensor of token ids"));
    return;
  }
  if (targets.sizes() != logits.tokens_shape()) {
    errors.push_back(BadInput("the targets do not have the shape of the logits without the vocabulary dim",
                              "targets " + ShapeToString(targets.sizes()), ShapeToString(logits.tokens_shape())));
  }
  if (targets.scalar_type() != at::kLong && targets.scalar_type() != at::kInt) {
    errors.push_back(BadInput("the targets do not have a dtype of token ids",
                              std::string(c10::toString(targets.scalar_type())), "int64 or int32"));
  }
  if (targets.device() != logits.device() && !targets.is_cpu()) {
    errors.push_back(
        BadInput("the targets and the logits are on different devices", targets.device().str(), logits.device().str()));
  }
}

// Whether this rank's columns are the vocabulary's shard; -1, or how many there are instead. A rank whose columns do
// not fit must not throw at once, since the others would wait in the all-gather: it takes part and declares their
// number, and the comparison of the collective makes it an error of every rank.
int64_t MismatchedSize(const Vocabulary& vocabulary, const ShardedLogits& logits) {
  return logits.columns() == vocabulary.shard().length ? -1 : logits.columns();
}

// [m, ...] on each rank -> [ranks, m, ...].
at::Tensor Gather(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& mine) {
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), vocabulary.group().size());
  CollectiveUse use;
  use.direction = Direction::kForward;
  use.label = &vocabulary.label();
  use.shape = shape;
  use.bytes = c10::multiply_integers(shape) * mine.element_size();
  use.mismatched_size = MismatchedSize(vocabulary, logits);
  return vocabulary.group().AllGather(mine, use).view(shape);
}

RowStatistics Statistics(const Vocabulary& vocabulary, const ShardedLogits& logits, const TargetColumns& targets,
                         Wanted wanted) {
  const at::TensorOptions options = at::TensorOptions(logits.device()).dtype(AccumulationType(logits.dtype()));
  const at::Tensor mine = at::empty({wanted.count(), logits.tokens()}, options);
  // Columns of the wrong number are an error of the collective; until then they are not to be indexed.
  if (MismatchedSize(vocabulary, logits) < 0) {
    logits.ForEachChunk([&](int64_t begin, const at::Tensor& chunk) {
      const int64_t length = chunk.size(0);
      LocalStatistics(chunk, targets.Narrow(begin, length), wanted, mine.narrow(1, begin, length));
    });
  }
  return JoinStatistics(Gather(vocabulary, logits, mine), vocabulary, wanted);
}

// The layout of input `i` of `count`: shards of the vocabulary, or what they are computed from.
// `whole`: every rank has the whole vocabulary, and computes as one rank does.
Layout InputLayout(size_t i, size_t count, bool whole) {
  if (whole) return Layout::Replicate();
  if (i > 0) return Layout::Shard(0);
  return count == 1 ? Layout::Shard(-1) : Layout::Shared();
}

void Take(Region& region, const ShardedLogits& logits, bool whole) {
  const std::vector<at::Tensor>& inputs = logits.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) region.DeclareInput(inputs[i], InputLayout(i, inputs.size(), whole));
}

// What a loss's backward needs: the rows' softmax, and how the incoming gradient becomes coefficients. All losses have
// one form of gradient, four terms with a coefficient a row each (GradientCoefficients), so that one node and one
// kernel serve all of them; a function from the incoming gradient to the coefficients is all that differs.
struct LossTape {
  at::Tensor max;
  at::Tensor log_sum;
  TargetColumns targets;
  std::function<GradientCoefficients(const at::Tensor& gradient)> coefficients;
};

class LossBackward final : public autograd::Node {
 public:
  LossBackward(std::string name, const std::string& label, AxisSet axes, bool whole, const ShardedLogits& logits,
               LossTape tape)
      : Node(autograd::collect_next_edges(at::TensorList(logits.inputs()))),
        name_(std::move(name)),
        label_(label),
        axes_(axes),
        whole_(whole),
        logits_(logits.Emptied()),
        tape_(std::move(tape)) {
    for (const at::Tensor& input : logits.inputs()) inputs_.emplace_back(input, false);
  }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor gradient = std::move(gradients[0]);
    if (!gradient.defined()) return autograd::variable_list(num_outputs());
    if (at::GradMode::is_enabled()) {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported, name_ + " cannot be differentiated twice");
      d.path = label_;
      d.declared = "backward with create_graph";
      d.required = "first-order gradients";
      throw PlanError({std::move(d)});
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> inputs;
    for (const autograd::SavedVariable& input : inputs_) inputs.push_back(input.unpack());
    const ShardedLogits logits = logits_.WithInputs(std::move(inputs));
    std::vector<bool> needed;
    for (size_t i = 0; i < num_outputs(); ++i) needed.push_back(task_should_compute_output(i));
    Region region(name_, label_, axes_);
    region.DeclareInput(logits.inputs()[0], InputLayout(0, logits.inputs().size(), whole_));
    region.DeclareInput(gradient, Layout::Replicate());
    const GradientCoefficients coefficients = tape_.coefficients(gradient);
    std::vector<at::Tensor> out = logits.Backward(
        [&](int64_t begin, const at::Tensor& chunk, const at::Tensor& out) {
          const int64_t length = chunk.size(0);
          LocalGradient(chunk, tape_.max.narrow(0, begin, length), tape_.log_sum.narrow(0, begin, length),
                        tape_.targets.Narrow(begin, length), coefficients.Narrow(begin, length), out);
        },
        needed);
    for (size_t i = 0; i < out.size(); ++i) {
      region.DeclareOutput(out[i], GradientLayout(InputLayout(i, out.size(), whole_)), /*summed=*/i > 0 && !whole_);
    }
    return out;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (autograd::SavedVariable& input : inputs_) input.reset_data();
    tape_ = {};
  }

  std::string name() const override { return name_ + "Backward(" + label_ + ")"; }

 private:
  std::string name_;
  std::string label_;
  AxisSet axes_;
  bool whole_;
  std::vector<autograd::SavedVariable> inputs_;  // with the error of a write into one of them in between
  ShardedLogits logits_;
  LossTape tape_;
};

// Gives `value`, computed without gradients, its backward where one is wanted.
at::Tensor Record(const char* name, const Vocabulary& vocabulary, const ShardedLogits& logits, at::Tensor value,
                  LossTape tape) {
  const bool wanted = at::GradMode::is_enabled() && std::ranges::any_of(logits.inputs(), [](const at::Tensor& input) {
                        return input.defined() && input.requires_grad();
                      });
  if (!wanted) return value;
  const auto node =
      std::shared_ptr<LossBackward>(new LossBackward(name, vocabulary.label().text(), vocabulary.group().axes(),
                                                     vocabulary.group().size() == 1, logits, std::move(tape)),
                                    autograd::deleteNode);
  autograd::create_gradient_edge(value, node);
  return value;
}

std::string DescribeLoss(const char* name, const ShardedLogits& logits, const std::string& options) {
  return std::string(name) + "(" + options + ") of " + c10::toString(logits.dtype()) + " logits of " +
         ShapeToString(logits.tokens_shape()) + " tokens";
}

// Targets as [tokens] int64, and which of them count.
struct Targets {
  at::Tensor ids;
  at::Tensor counted;  // bool
  TargetColumns columns;
};

Targets ReadTargets(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                    int64_t ignore_index) {
  const at::Tensor ids =
      targets.detach().reshape({-1}).to(logits.device(), at::kLong, /*non_blocking=*/targets.is_cpu());
  const at::Tensor counted = ids.ne(ignore_index);
  return {ids, counted, TargetColumns::Of(ids, vocabulary.shard())};
}

// log p of the target: NaN for an id that no rank has, which only unchecked targets can hold.
at::Tensor TargetLogProb(const Vocabulary& vocabulary, const RowStatistics& row, const at::Tensor& ids) {
  const at::Tensor foreign = ids.lt(0).logical_or_(ids.ge(vocabulary.size()));
  return ((row.target - row.max) - row.log_sum).masked_fill_(foreign, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

at::Tensor CrossEntropy(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                        const CrossEntropyOptions& options) {
  constexpr const char* kName = "CrossEntropy";
  Diagnostics errors = CheckLogits(vocabulary, logits);
  CheckTargets(logits, targets, errors);
  const double e = options.label_smoothing;
  const double w = options.z_loss;
  if (!(e >= 0 && e <= 1))
    errors.push_back(BadInput("label smoothing is out of range", std::to_string(e), "a number from 0 to 1"));
  if (!(w >= 0))
    errors.push_back(BadInput("the z-loss coefficient is out of range", std::to_string(w), "a number of at least 0"));
  const std::string described =
      DescribeLoss(kName, logits,
                   "reduction " + std::to_string(static_cast<int>(options.reduction)) + ", ignore_index " +
                       std::to_string(options.ignore_index) + ", label_smoothing " + std::to_string(e) + ", z_loss " +
                       std::to_string(w));
  vocabulary.CheckCall(described, errors.empty() ? targets : at::Tensor(), options.ignore_index, std::move(errors));

  LossTape tape;
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    Region region(kName, vocabulary.label().text(), vocabulary.group().axes());
    Take(region, logits, vocabulary.group().size() == 1);
    const Targets read = ReadTargets(vocabulary, logits, targets, options.ignore_index);
    const RowStatistics row = Statistics(vocabulary, logits, read.columns, {.target = true, .shifted_sum = e > 0});
    const at::Tensor log_sum_exp = row.max + row.log_sum;
    // L - z_y is -TargetLogProb. The smoothing term L - mean(z) is taken from sums of z - M on both sides, log Z - D /
    // V, because M may be far larger than the difference.
    value = TargetLogProb(vocabulary, row, read.ids).neg_();
    if (e > 0) {
      value = value * (1 - e) + (row.log_sum - row.shifted_sum / static_cast<double>(vocabulary.size())) * e;
    }
    if (w > 0) value = value + log_sum_exp.square() * w;
    // By filling and not by a product with 0: the loss of an ignored token is NaN where ignore_index is no id
    // (TargetLogProb), and may be infinite.
    value = value.masked_fill(read.counted.logical_not(), 0);
    const at::Tensor count = read.counted.sum().to(value.scalar_type());
    switch (options.reduction) {
      case LossReduction::kNone: value = value.view(targets.sizes()).clone(); break;  // no view carries a history
      case LossReduction::kSum: value = value.sum(); break;
      case LossReduction::kMean: value = value.sum() / count; break;
    }
    region.DeclareOutput(value, Layout::Replicate(), options.reduction != LossReduction::kNone);
    if (options.reduction == LossReduction::kMean) region.DeclareMean(value);
    const double size = static_cast<double>(vocabulary.size());
    tape.max = row.max;
    tape.log_sum = row.log_sum;
    tape.targets = read.columns;
    tape.coefficients = [counted = read.counted, count, log_sum_exp, e, w, size,
                         mean = options.reduction == LossReduction::kMean](const at::Tensor& gradient) {
      at::Tensor g = gradient.to(log_sum_exp.scalar_type());
      if (mean) g = g / count;
      g = at::where(counted, g.reshape({-1}), at::zeros({}, g.options()));
      GradientCoefficients c;
      c.probability = w > 0 ? g * (log_sum_exp * (2 * w) + 1) : g;
      c.target = e > 0 ? g * (1 - e) : g;
      if (e > 0) c.constant = g * (e / size);
      return c;
    };
  }
  return Record(kName, vocabulary, logits, std::move(value), std::move(tape));
}

at::Tensor TokenLogProbs(const Vocabulary& vocabulary, const ShardedLogits& logits, const at::Tensor& targets,
                         int64_t ignore_index) {
  constexpr const char* kName = "TokenLogProbs";
  Diagnostics errors = CheckLogits(vocabulary, logits);
  CheckTargets(logits, targets, errors);
  vocabulary.CheckCall(DescribeLoss(kName, logits, "ignore_index " + std::to_string(ignore_index)),
                       errors.empty() ? targets : at::Tensor(), ignore_index, std::move(errors));
  LossTape tape;
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    Region region(kName, vocabulary.label().text(), vocabulary.group().axes());
    Take(region, logits, vocabulary.group().size() == 1);
    const Targets read = ReadTargets(vocabulary, logits, targets, ignore_index);
    const RowStatistics row = Statistics(vocabulary, logits, read.columns, {.target = true});
    const at::Tensor ignored = read.counted.logical_not().view(targets.sizes());
    value = TargetLogProb(vocabulary, row, read.ids).view(targets.sizes()).masked_fill(ignored, 0);
    region.DeclareOutput(value, Layout::Replicate());
    tape = {row.max, row.log_sum, read.columns, [counted = read.counted](const at::Tensor& gradient) {
              const at::Tensor g = at::where(counted, gradient.reshape({-1}), at::zeros({}, gradient.options())).neg();
              return GradientCoefficients{.probability = g, .target = g};
            }};
  }
  return Record(kName, vocabulary, logits, std::move(value), std::move(tape));
}

at::Tensor Entropy(const Vocabulary& vocabulary, const ShardedLogits& logits) {
  constexpr const char* kName = "Entropy";
  vocabulary.CheckCall(DescribeLoss(kName, logits, ""), {}, 0, CheckLogits(vocabulary, logits));
  LossTape tape;
  at::Tensor value;
  {
    const at::NoGradGuard no_grad;
    Region region(kName, vocabulary.label().text(), vocabulary.group().axes());
    Take(region, logits, vocabulary.group().size() == 1);
    const RowStatistics row = Statistics(vocabulary, logits, {}, {.moment = true});
    const at::Tensor entropy = row.log_sum - row.moment / row.log_sum.exp();
    // A copy, because a caller may write into the result and the backward needs its own.
    value = entropy.view(logits.tokens_shape()).clone();
    region.DeclareOutput(value, Layout::Replicate());
    tape = {row.max, row.log_sum, {}, [entropy](const at::Tensor& gradient) {
              const at::Tensor g = gradient.reshape({-1}).neg();
              return GradientCoefficients{.probability = g * entropy, .log_probability = g};
            }};
  }
  return Record(kName, vocabulary, logits, std::move(value), std::move(tape));
}

TopKResult TopK(const Vocabulary& vocabulary, const ShardedLogits& logits, int64_t k) {
  Diagnostics errors = CheckLogits(vocabulary, logits);
  if (k < 1 || k > vocabulary.size()) {
    errors.push_back(BadInput("k is out of range for top-k", "k = " + std::to_string(k),
                              "from 1 to " + std::to_string(vocabulary.size()) + ", the vocabulary's size"));
  }
  vocabulary.CheckCall(DescribeLoss("TopK", logits, "k " + std::to_string(k)), {}, 0, std::move(errors));
  const at::NoGradGuard no_grad;
  Region region("TopK", vocabulary.label().text(), vocabulary.group().axes());
  Take(region, logits, vocabulary.group().size() == 1);
  // The k largest of the vocabulary are among the k largest of each shard, so k candidates per rank are enough. An
  // all-gather takes equal blocks: all are as wide as rank 0's, whose shard is the longest, and the padding is removed
  // before the second selection, so that it never competes with a logit.
  const auto held = [&](int64_t rank) { return std::min(k, vocabulary.length(rank)); };
  const int64_t mine = std::min(k, vocabulary.shard().length);
  // Values and ids in one buffer: doubles hold every logit and every id exactly.
  const at::Tensor best =
      at::zeros({2, logits.tokens(), held(0)}, at::TensorOptions(logits.device()).dtype(at::kDouble));
  if (mine > 0 && MismatchedSize(vocabulary, logits) < 0) {
    logits.ForEachChunk([&](int64_t begin, const at::Tensor& chunk) {
      const auto [values, columns] = chunk.topk(mine, 1);
      const at::Tensor here = best.narrow(1, begin, chunk.size(0)).narrow(2, 0, mine);
      here[0].copy_(values);
      here[1].copy_(columns.add_(vocabulary.shard().begin));
    });
  }
  const at::Tensor gathered = Gather(vocabulary, logits, best);
  std::vector<at::Tensor> candidates;  // without the padding of ranks that hold fewer
  for (int64_t rank = 0; rank < gathered.size(0); ++rank) candidates.push_back(gathered[rank].narrow(2, 0, held(rank)));
  const at::Tensor all = at::cat(candidates, 2);
  const auto [values, order] = all[0].topk(k, 1);
  std::vector<int64_t> shape = logits.tokens_shape().vec();
  shape.push_back(k);
  TopKResult result = {values.to(logits.dtype()).view(shape), all[1].gather(1, order).to(at::kLong).view(shape)};
  region.DeclareOutput(result.values, Layout::Replicate());
  region.DeclareOutput(result.ids, Layout::Replicate());
  return result;
}

}  // namespace moonshard
