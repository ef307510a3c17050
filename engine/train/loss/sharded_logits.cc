// Two forms of logits behind one interface: a tensor, and a head that has not been applied yet. With the head, logits
// exist for one chunk of tokens at a time, forward and again in the backward, which computes each chunk's logits anew,
// turns them into their gradient in place and multiplies it out before the next chunk. The peak is one chunk in place
// of all tokens times the vocabulary, at the price of one more product with the weight. The gradient of the weight is a
// sum over chunks and is added up in the accumulation dtype.
#include "engine/train/loss/sharded_logits.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "engine/core/base/text.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {
namespace {

Diagnostic BadHead(const Vocabulary& vocabulary, const std::string& message, const std::string& declared,
                   const std::string& required) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = vocabulary.label().text();
  d.declared = declared;
  d.required = required;
  return d;
}

std::string Describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return std::string(c10::toString(tensor.scalar_type())) + " " + ShapeToString(tensor.sizes());
}

Diagnostics CheckHead(const Vocabulary& vocabulary, const at::Tensor& hidden, const at::Tensor& weight,
                      const at::Tensor& bias, const HeadOptions& options) {
  Diagnostics errors;
  if (!hidden.defined() || hidden.dim() < 1 || !weight.defined() || weight.dim() != 2 ||
      hidden.size(-1) != weight.size(1)) {
    errors.push_back(BadHead(vocabulary, "the shapes of the hidden states and of the head's weight do not fit together",
                             "hidden " + Describe(hidden) + ", weight " + Describe(weight),
                             "hidden [..., h] and weight [columns of this rank, h]"));
    return errors;
  }
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0))) {
    errors.push_back(BadHead(vocabulary, "the shape of the bias does not fit the head's weight",
                             "bias " + Describe(bias) + ", weight " + Describe(weight), "bias [columns of this rank]"));
  }
  if (weight.scalar_type() != hidden.scalar_type() || (bias.defined() && bias.scalar_type() != hidden.scalar_type())) {
    errors.push_back(BadHead(vocabulary, "the hidden states and the head have different dtypes",
                             "hidden " + Describe(hidden) + ", weight " + Describe(weight) +
                                 (bias.defined() ? ", bias " + Describe(bias) : ""),
                             "the same dtype: convert the hidden states"));
  }
  if (options.chunk < 1) {
    errors.push_back(BadHead(vocabulary, "HeadOptions::chunk is below 1", "chunk " + std::to_string(options.chunk),
                             "at least 1 token"));
  }
  return errors;
}

// Adds a @ b to `sum`, in float for half precision where there is more than one product.
void AddProduct(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool only) {
  if (!sum.defined()) {
    sum = at::mm(a, b);
    if (!only) sum = sum.to(AccumulationType(sum.scalar_type()));
  } else if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else {
    sum.add_(at::mm(a, b));
  }
}

}  // namespace

ShardedLogits::ShardedLogits(at::Tensor logits) : inputs_{std::move(logits)} {}

ShardedLogits ShardedLogits::OfHead(const Vocabulary& vocabulary, at::Tensor hidden, at::Tensor weight, at::Tensor bias,
                                    const HeadOptions& options) {
  Diagnostics errors = CheckHead(vocabulary, hidden, weight, bias, options);
  if (!errors.empty()) throw PlanError(std::move(errors));
  RedistributionOptions redistribution;
  // Each rank multiplies the hidden states with its own rows of the weight, so its gradient of them is a term of a sum:
  // `shared`, whose backward sums it.
  redistribution.label = vocabulary.label().text() + " hidden";
  hidden =
      TensorRedistribution::Make(options.hidden, Layout::Shared(), vocabulary.shared_group(), std::move(redistribution))
          .ValueOrThrow()(std::move(hidden));
  return {{std::move(hidden), std::move(weight), std::move(bias)}, options.chunk};
}

int64_t ShardedLogits::tokens() const { return c10::multiply_integers(tokens_shape()); }

int64_t ShardedLogits::columns() const { return is_head() ? inputs_[1].size(0) : input().size(-1); }

// Autocast is excluded: a backward runs outside of the scope of its forward, and chunks that are computed twice must
// have the same dtype both times.
void ShardedLogits::ForEachChunk(const std::function<void(int64_t begin, const at::Tensor& logits)>& body) const {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor rows = input().detach().reshape({tokens(), input().size(-1)});
  if (!is_head()) return body(0, rows);
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk_) {
    const int64_t length = std::min(chunk_, rows.size(0) - begin);
    body(begin, at::linear(rows.narrow(0, begin, length), inputs_[1], inputs_[2]));
  }
}

// Per chunk of c tokens, with G [c, v] the gradient of its logits: hidden gets G W [c, h], weight is added G^T X, bias
// the sum of G's rows. G overwrites the logits, which nothing else has. Rows of the hidden gradient belong to one chunk
// and are written once; the other two are sums over chunks, in the accumulation dtype, and rounded at the end: bfloat16
// would lose the later chunks of a long sequence in the sum of the earlier ones.
std::vector<at::Tensor> ShardedLogits::Backward(const ChunkGradient& gradient, const std::vector<bool>& needed) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients(inputs_.size());
  if (!is_head()) {
    if (!needed[0]) return gradients;
    gradients[0] = at::empty(input().sizes(), input().options());
    ForEachChunk(
        [&](int64_t begin, const at::Tensor& logits) { gradient(begin, logits, gradients[0].view(logits.sizes())); });
    return gradients;
  }
  const at::Tensor& weight = inputs_[1];
  const at::Tensor rows = input().detach().reshape({tokens(), input().size(-1)});
  const bool only = tokens() <= chunk_;
  at::Tensor hidden_rows;
  if (needed[0]) {
    gradients[0] = at::empty(input().sizes(), input().options());
    hidden_rows = gradients[0].view(rows.sizes());
  }
  ForEachChunk([&](int64_t begin, const at::Tensor& logits) {
    gradient(begin, logits, logits);
    if (needed[0]) {
      at::Tensor out = hidden_rows.narrow(0, begin, logits.size(0));
      at::mm_out(out, logits, weight);
    }
    if (needed[1]) AddProduct(gradients[1], logits.t(), rows.narrow(0, begin, logits.size(0)), only);
    if (needed[2]) {
      const at::Tensor sum = logits.sum(0, false, AccumulationType(dtype()));
      gradients[2] = gradients[2].defined() ? gradients[2].add_(sum) : sum;
    }
  });
  for (size_t i = 1; i < inputs_.size(); ++i) {
    if (!needed[i]) continue;
    gradients[i] = gradients[i].defined() ? gradients[i].to(inputs_[i].scalar_type()) : at::zeros_like(inputs_[i]);
  }
  return gradients;
}

}  // namespace moonshard
