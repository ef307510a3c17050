#include "engine/models/program/trial/try_node.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include "engine/core/base/text.h"
#include "engine/models/program/trial/find_spread.h"
#include "engine/runtime/nn/local_rows.h"

namespace moonshard::trial {
namespace {

std::string TextOf(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

class Trial {
 public:
  Trial(const Site& site, bool wide) : site_(site), outputs_(site.node->outputs) {
    for (Drawing drawing : DrawingsOf(site, wide)) {
      for (const int64_t below : BoundsOf(site)) {
        drawing.below = below;
        if (Run(drawing)) break;
      }
      if (out_.kind == Tried::Kind::kFails) return;
    }
    if (full_.empty()) return;
    out_.kind = Tried::Kind::kHolds;
    try {
      TakeResults();
    } catch (const std::exception&) {
      out_ = {};  // values that cannot be compared
    }
  }

  Tried result() && { return std::move(out_); }

  // Which operand's memory the results have in the dtypes of the program.
  static Tried::Memory MemoryIn(const Site& site, Drawing drawing) {
    drawing.wide = false;
    try {
      const Operands operands = DrawOperands(site, drawing);
      return MemoryOf(CallOn(site, operands.full, -1), operands.full, site.node->outputs.size());
    } catch (const std::exception&) {
      return {};
    }
  }

 private:
  void TakeResults() {
    for (size_t i = 0; i < outputs_.size() && out_.kind == Tried::Kind::kHolds; ++i) {
      out_.spreads.emplace_back();
      out_.numbers.emplace_back();
      if (outputs_[i] == ProgramNode::kNoValue) continue;
      if (site_.MakesTensor(i)) {
        TakeResult(i);
      } else {
        TakeNumber(i);
      }
    }
    for (size_t i = 0; i < site_.run->writes().size() && out_.kind == Tried::Kind::kHolds; ++i) TakeWritten(i);
  }

  // Returns false if the full operator does not run on the draw.
  bool Run(const Drawing& drawing) {
    Operands operands;
    std::vector<c10::IValue> made;
    try {
      operands = DrawOperands(site_, drawing);
      made = CallOn(site_, operands.full, -1);
    } catch (const std::exception&) {
      return false;
    }
    if (made.size() < outputs_.size()) return false;
    if (out_.of.empty()) out_.of = MemoryOf(made, operands.full, outputs_.size());
    std::vector<std::vector<c10::IValue>> of_ranks;
    for (int64_t rank = 0; rank < site_.ranks; ++rank) {
      try {
        of_ranks.push_back(CallOn(site_, operands.local[static_cast<size_t>(rank)], rank));
      } catch (const std::exception& error) {
        Fail("on rank " + std::to_string(rank) + " it fails: " + TextOf(error));
        return true;
      }
    }
    full_.push_back(std::move(made));
    operands_.push_back(std::move(operands));
    local_.push_back(std::move(of_ranks));
    out_.drawings.push_back(drawing);
    return true;
  }

  void Fail(std::string why) {
    out_.kind = Tried::Kind::kFails;
    out_.why = std::move(why);
  }

  // Which operand's memory a result has.
  static Tried::Memory MemoryOf(const std::vector<c10::IValue>& made, const std::vector<c10::IValue>& given,
                                size_t results) {
    Tried::Memory out(results);
    for (size_t i = 0; i < results && i < made.size(); ++i) {
      if (!made[i].isTensor() || !made[i].toTensor().defined()) continue;
      for (size_t j = 0; j < given.size(); ++j) {
        if (given[j].isTensor() && made[i].toTensor().is_alias_of(given[j].toTensor())) out[i] = j;
      }
    }
    return out;
  }

  // A number that is the same in both draws does not depend on data.
  void TakeNumber(size_t i) {
    bool of_data = full_.size() == 1;
    for (size_t draw = 0; draw < full_.size(); ++draw) {
      of_data = of_data || !SameNumber(full_[draw][i], full_[0][i]);
      for (size_t rank = 0; rank < local_[draw].size(); ++rank)
        of_data = of_data || !SameNumber(local_[draw][rank][i], local_[0][rank][i]);
    }
    RankNumber& made = out_.numbers.back();
    if (!of_data) {
      made.kind = RankNumber::Kind::kKnown;
      made.full = full_[0][i];
      for (const auto& rank : local_[0]) made.local.push_back(rank[i]);
      return;
    }
    made.kind = RankNumber::Kind::kAgreed;
    constexpr double kRounding = 1e-6;
    for (size_t draw = 0; draw < full_.size(); ++draw) {
      for (const auto& rank : local_[draw]) {
        const double a = AsReal(full_[draw][i]);
        const double b = AsReal(rank[i]);
        if (SameNumber(full_[draw][i], rank[i]) || std::abs(a - b) <= kRounding * std::max(std::abs(a), 1.0)) continue;
        Fail("a number that it reads from a tensor is another one on a rank");
        return;
      }
    }
  }

  void TakeResult(size_t i) {
    std::vector<Draw> draws;
    for (size_t draw = 0; draw < full_.size(); ++draw) {
      if (!full_[draw][i].isTensor() || !full_[draw][i].toTensor().defined()) return;
      Draw& one = draws.emplace_back();
      one.full = full_[draw][i].toTensor();
      for (const auto& rank : local_[draw]) one.local.push_back(rank[i].toTensor());
    }
    TakeTensor(std::move(draws), outputs_.size() > 1 ? "result " + std::to_string(i) : "its result",
               out_.spreads.back());
  }

  void TakeWritten(size_t i) {
    const auto j =
        static_cast<size_t>(std::ranges::find(site_.run->reads(), site_.run->writes()[i]) - site_.run->reads().begin());
    std::vector<Draw> draws;
    for (const Operands& operands : operands_) {
      Draw& one = draws.emplace_back();
      one.full = operands.full[j].toTensor();
      for (const auto& rank : operands.local) one.local.push_back(rank[j].toTensor());
    }
    TakeTensor(std::move(draws), "the tensor that it writes", out_.written.emplace_back());
  }

  void TakeTensor(std::vector<Draw> draws, const std::string& what, Spread& made) {
    const std::vector<uint32_t> lacks = site_.Lacks();
    for (size_t draw = 0; draw < draws.size(); ++draw) {
      for (const uint32_t parameter : lacks) {
        const at::Tensor added = DrawParameter(site_, parameter, at::kDouble, out_.drawings[draw]);
        Draw& one = draws[draw];
        one.lacking = one.lacking.defined() ? one.lacking + added : added;
      }
    }
    if (site_.run->makes_memory()) {
      for (Draw& draw : draws) {
        draw.full = at::zeros_like(draw.full);
        for (at::Tensor& own : draw.local) own = at::zeros_like(own);
      }
    }
    const std::vector<int64_t> sizes = draws.front().full.sizes().vec();
    const bool sized = std::ranges::all_of(draws, [&](const Draw& draw) { return draw.full.sizes() == sizes; });
    std::erase_if(draws, [](const Draw& draw) { return draw.full.numel() == 0; });
    if (draws.empty()) {
      out_.kind = Tried::Kind::kNot;
      return;
    }
    std::vector<const Spread*> hints;
    for (size_t j = 0; j < site_.operands(); ++j) {
      if (site_.IsTensor(j)) hints.push_back(&site_.spreads[j]);
    }
    std::optional<Spread> found = FindSpread(draws, hints);
    const bool takes = found.has_value();
    if (!found && !lacks.empty()) {
      // It took no part of the parameters: the shape alone, or a mask.
      for (Draw& draw : draws) draw.lacking = at::Tensor();
      found = FindSpread(draws, hints);
    }
    // Elements that a mask selects: how many, and which, is another matter in each draw.
    if (!found && !sized) return;
    if (!found) {
      Fail(Mismatch(draws.front(), what));
      return;
    }
    if (takes) found->lacks = lacks;
    found->zero = found->zero && found->lacks.empty() && KeepsZeros();
    for (const Spread* hint : hints) {
      if (found->origin < 0 && (hint->is_shard() || hint->is_partial())) found->origin = hint->origin;
    }
    made = *std::move(found);
  }

  // Whether zeros in all draws are zeros whatever the operands: what makes zeros, or computes them from zeros.
  bool KeepsZeros() const {
    const std::string& target = site_.node->target;
    bool tensors = false;
    bool all = true;
    bool any = false;
    for (size_t j = 0; j < site_.operands(); ++j) {
      if (!site_.IsTensor(j)) continue;
      tensors = true;
      any = any || site_.spreads[j].zero;
      const c10::IValue& one = operands_.front().full[j];
      all = all && (site_.spreads[j].zero || !one.isTensor() || !one.toTensor().is_floating_point());
    }
    const bool product = target == "aten::mul" || target == "aten::matmul" || target == "aten::bmm";
    if (tensors && any && (all || product)) return true;
    const std::vector<double> factors = site_.run->factors();
    return !tensors || site_.run->makes_memory() || target == "aten::zeros_like" || target == "aten::new_zeros" ||
           target == "aten::zero_" || target == "aten::fill_" || target == "aten::full_like" ||
           target == "aten::new_full" || (target == "aten::mul" && std::ranges::find(factors, 0.0) != factors.end());
  }

  static std::string Mismatch(const Draw& draw, const std::string& what) {
    const auto sizes = [](const at::Tensor& tensor) {
      std::vector<std::string> out;
      for (const int64_t size : tensor.sizes()) out.push_back(std::to_string(size));
      return "[" + Join(out, ", ") + "]";
    };
    double most = 0;
    for (const at::Tensor& local : draw.local) {
      const std::optional<double> difference = Difference(draw.full, local);
      if (!difference) {
        return what + " has sizes " + sizes(draw.full) + ", and the " + sizes(local) +
               " of a rank are neither a slice of it nor a term";
      }
      most = std::max(most, *difference);
    }
    char text[160];
    std::snprintf(text, sizeof(text), "%s differs by %.2g of its largest value on made-up tensors", what.c_str(), most);
    return text;
  }

  const Site& site_;
  const std::vector<uint32_t>& outputs_;
  std::vector<Operands> operands_;                            // by draw, as the operator left them
  std::vector<std::vector<c10::IValue>> full_;                // by draw, by output
  std::vector<std::vector<std::vector<c10::IValue>>> local_;  // by draw, by rank, by output
  Tried out_;
};

}  // namespace

std::vector<c10::IValue> CallOn(const Site& site, const std::vector<c10::IValue>& given, int64_t rank) {
  const Spread::Shard* rows = rank >= 0 && site.looks_up ? site.spreads[0].Along(0) : nullptr;
  if (rows == nullptr) return site.run->Call(given);
  const std::vector<int64_t>& own = rows->of(static_cast<size_t>(rank));
  const nn::LocalRows local{own.empty() ? 0 : own.front(), static_cast<int64_t>(own.size()), site.value(0).sizes[0]};
  std::optional<int64_t> padding;
  for (const auto& [name, argument] : site.node->inputs) {
    if (name == "padding_idx" && argument.kind == ProgramArgument::Kind::kInt && argument.integer >= 0)
      padding = argument.integer;
  }
  return {nn::LookUpLocalRows(given[0].toTensor(), given[1].toTensor(), local, padding, false)};
}

Tried TryNode(const Site& site) {
  Tried out = Trial(site, /*wide=*/true).result();
  if (out.kind == Tried::Kind::kNot) return Trial(site, /*wide=*/false).result();
  // A cast to the dtype that a tensor has is the tensor itself, but not in a draw of another dtype.
  if (out.kind == Tried::Kind::kHolds && site.has_writes) {
    const Tried::Memory of = Trial::MemoryIn(site, out.drawings.front());
    for (size_t i = 0; i < of.size() && i < out.of.size(); ++i) {
      if (of[i]) out.of[i] = of[i];
    }
  }
  return out;
}

}  // namespace moonshard::trial
