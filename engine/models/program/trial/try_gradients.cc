#include "engine/models/program/trial/try_gradients.h"

#include <exception>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/models/program/trial/find_spread.h"
#include "engine/models/program/trial/made_up.h"

namespace moonshard::trial {
namespace {

// The gradients of the tensor operands; undefined where there is none.
std::vector<at::Tensor> Backward(const Site& site, std::vector<c10::IValue> given, int64_t rank,
                                 const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> leaves(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].isTensor() || site.late[i]) continue;
    const at::Tensor& tensor = given[i].toTensor();
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;
    leaves[i] = tensor.detach().requires_grad_(true);
    given[i] = leaves[i].clone();  // which the operator may write
  }
  const std::vector<c10::IValue> made = CallOn(site, given, rank);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> seeds;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || !made[i].isTensor() || !made[i].toTensor().requires_grad()) continue;
    outputs.push_back(made[i].toTensor());
    seeds.push_back(gradients[i].to(outputs.back().scalar_type()));
  }
  std::vector<at::Tensor> out(given.size());
  std::vector<at::Tensor> inputs;
  std::vector<size_t> at;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].defined()) continue;
    inputs.push_back(leaves[i]);
    at.push_back(i);
  }
  if (outputs.empty() || inputs.empty()) return out;
  const std::vector<at::Tensor> found = torch::autograd::grad(outputs, inputs, seeds, /*retain_graph=*/false,
                                                              /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) out[at[i]] = found[i];
  return out;
}

// The ranks' tensors added at the places of their elements.
at::Tensor Added(const Spread& spread, const at::Tensor& full, const std::vector<at::Tensor>& local) {
  at::Tensor out = at::zeros_like(full);
  for (size_t rank = 0; rank < local.size(); ++rank) {
    if (!spread.is_shard()) {
      out = out + local[rank];
      continue;
    }
    at::Tensor own = local[rank];
    for (size_t i = spread.shards.size(); i-- > 0;) {
      std::vector<int64_t> sizes = own.sizes().vec();
      const int64_t dim = spread.shards[i].dim;
      sizes[static_cast<size_t>(dim)] = full.size(dim);
      own = at::zeros(sizes, own.options()).index_add(dim, at::tensor(spread.shards[i].of(rank), at::kLong), own);
    }
    out = out + own;
  }
  return out;
}

// Of two dtypes of floats the one of fewer digits: what is cast to it on the way is rounded to it.
at::ScalarType Narrower(at::ScalarType a, at::ScalarType b) {
  const auto digits = [](at::ScalarType type) {
    switch (c10::toRealValueType(type)) {
      case at::kDouble: return 4;
      case at::kFloat: return 3;
      case at::kHalf: return 2;
      case at::kBFloat16: return 1;
      default: return 5;  // no float
    }
  };
  return digits(a) <= digits(b) ? c10::toRealValueType(a) : c10::toRealValueType(b);
}

// The gradients of one operand in all draws.
struct OfOperand {
  bool defined = false;  // in some draw
  std::vector<at::Tensor> full;
  std::vector<std::vector<at::Tensor>> local;
};

// `type`: the dtype up to whose rounding gradients are equal.
std::optional<GradientKind> KindOf(const Spread& spread, const OfOperand& of, at::ScalarType type) {
  const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
    if (a.is_complex()) return Near(a, b);
    return Near(a.to(type), b.to(type));
  };
  bool none = true;
  bool full = true;
  bool terms = !spread.is_partial();
  for (size_t draw = 0; draw < of.full.size(); ++draw) {
    const at::Tensor& whole = of.full[draw];
    none = none && whole.eq(0).all().item<bool>();
    for (size_t rank = 0; rank < of.local[draw].size(); ++rank) {
      const at::Tensor own = spread.is_shard() ? SlicesOf(spread, whole, rank) : whole;
      none = none && of.local[draw][rank].eq(0).all().item<bool>();
      full = full && near(own, of.local[draw][rank]);
    }
    terms = terms && near(whole, Added(spread, whole, of.local[draw]));
  }
  if (none) return GradientKind::kNone;
  if (full) return GradientKind::kFull;
  return terms ? std::optional(GradientKind::kTerms) : std::nullopt;
}

}  // namespace

GradientKind Sum(GradientKind a, GradientKind b) {
  if (a == GradientKind::kNone || a == b) return b;
  if (b == GradientKind::kNone) return a;
  const bool unknown = a == GradientKind::kUnknown || b == GradientKind::kUnknown;
  return unknown ? GradientKind::kUnknown : GradientKind::kMixed;
}

std::optional<std::vector<GradientKind>> TryGradients(const Site& site, const Tried& tried,
                                                      const std::vector<GradientKind>& kinds) {
  const c10::AutoGradMode gradients(true);
  std::vector<OfOperand> of(site.operands());
  at::ScalarType type = at::kDouble;
  std::vector<GradientKind> out(site.operands(), GradientKind::kNone);
  const std::vector<GradientKind> unknown(site.operands(), GradientKind::kUnknown);
  bool known = true;
  const auto run = [&](const Drawing& drawing) {
    const Operands operands = DrawOperands(site, drawing);
    const std::vector<c10::IValue> made = [&] {
      const c10::AutoGradMode none(false);
      return CallOn(site, DrawOperands(site, drawing).full, -1);
    }();
    std::vector<at::Tensor> full(kinds.size());
    std::vector<std::vector<at::Tensor>> local(static_cast<size_t>(site.ranks), full);
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] == GradientKind::kNone || !made[i].isTensor() || !made[i].toTensor().defined()) continue;
      const at::Tensor& result = made[i].toTensor();
      if (!result.is_floating_point() && !result.is_complex()) continue;
      type = Narrower(type, result.scalar_type());
      const Spread& spread = tried.spreads[i];
      known = known && spread.known() && !(spread.is_partial() && kinds[i] == GradientKind::kTerms);
      if (!known) return;
      full[i] =
          at::empty_like(result, at::MemoryFormat::Contiguous).normal_(0, 1, at::detail::createCPUGenerator(900 + i));
      const std::vector<at::Tensor> of_ranks =
          DrawGradients(spread, full[i], kinds[i] == GradientKind::kTerms, site.ranks);
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) local[rank][i] = of_ranks[rank];
    }
    const std::vector<at::Tensor> whole = Backward(site, operands.full, -1, full);
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int64_t rank = 0; rank < site.ranks; ++rank) {
      of_ranks.push_back(
          Backward(site, operands.local[static_cast<size_t>(rank)], rank, local[static_cast<size_t>(rank)]));
    }
    for (size_t i = 0; i < of.size(); ++i) {
      if (!whole[i].defined()) continue;
      type = Narrower(type, whole[i].scalar_type());
      of[i].defined = true;
      // Where an element is beyond the operator's range, gradients are not compared.
      const at::Tensor within = at::isfinite(whole[i]);
      if (whole[i].numel() > 0 && !within.any().item<bool>()) continue;
      of[i].full.push_back(at::where(within, whole[i], at::zeros_like(whole[i])));
      std::vector<at::Tensor>& own = of[i].local.emplace_back();
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const at::Tensor zeros = at::zeros_like(operands.local[rank][i].toTensor());
        const at::Tensor here = site.spreads[i].is_shard() ? SlicesOf(site.spreads[i], within, rank) : within;
        own.push_back(of_ranks[rank][i].defined() ? at::where(here, of_ranks[rank][i], zeros) : zeros);
      }
    }
  };
  // Whether all draws are beyond the operator's range, or a gradient of few elements is zero in all of them: there the
  // operator may be constant.
  const auto is_flat = [&](size_t i) {
    constexpr int64_t kFew = 1024;
    if (of[i].full.empty()) return of[i].defined;
    return of[i].full.front().numel() <= kFew &&
           std::ranges::all_of(of[i].full, [](const at::Tensor& one) { return one.eq(0).all().item<bool>(); });
  };
  try {
    for (const Drawing& drawing : tried.drawings) run(drawing);
    if (!tried.drawings.empty()) {
      for (const Drawing& drawing : MoreDrawingsOf(site, tried.drawings.front())) {
        bool flat = false;
        for (size_t i = 0; i < of.size(); ++i) flat = flat || is_flat(i);
        if (flat) run(drawing);
      }
    }
    if (!known) return unknown;
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i].full.empty()) {
        if (of[i].defined) out[i] = GradientKind::kUnknown;
        continue;
      }
      const std::optional<GradientKind> kind = KindOf(site.spreads[i], of[i], type);
      if (!kind) return std::nullopt;
      out[i] = *kind;
    }
  } catch (const std::exception&) {
    return unknown;
  }
  return out;
}

}  // namespace moonshard::trial
