// OnRanks: runs an operation on the tensors that each of several ranks holds, under the type checker, and compares the
// ranks' results with the result of the full tensors.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/layout/shards.h"
#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {

using Tensors = std::vector<at::Tensor>;

struct Operation {
  std::string name;
  Tensors inputs;  // full
  std::function<Tensors(const Tensors&)> body;
  bool packed = true;          // whether its operands may be packed
  bool checks_indices = true;  // else indices out of range are not an error of the operator but a write anywhere
};

// The layouts that a full tensor can have on `ranks` ranks. `partial_indices`: integers may be partial too.
inline std::vector<Layout> LayoutsOfTensor(const at::Tensor& full, bool packed, bool partial_indices, int64_t ranks) {
  std::vector<Layout> out = {Layout::Replicate()};
  if (full.is_floating_point() || (full.scalar_type() == at::kLong && partial_indices))
    out.push_back(Layout::Partial());
  for (int64_t d = 0; d < full.dim(); ++d) {
    if (full.size(d) < ranks) continue;
    out.push_back(Layout::Shard(static_cast<int>(d)));
    if (packed && full.size(d) % (2 * ranks) == 0)
      out.push_back(Layout::PackedEqually(static_cast<int>(d), 2).Sized(full.size(d)));
  }
  return out;
}

// What a rank holds of the indices of a dim.
inline at::Tensor IndicesOf(const std::vector<Interval>& intervals) {
  Tensors parts;
  for (const Interval& one : intervals) parts.push_back(at::arange(one.begin, one.begin + one.length, at::kLong));
  return parts.empty() ? at::empty({0}, at::kLong) : at::cat(parts);
}

// The terms of a partial tensor, one for each rank.
inline Tensors TermsOf(const at::Tensor& full, int64_t ranks) {
  at::manual_seed(17);
  Tensors terms;
  at::Tensor rest = full.clone();
  for (int64_t rank = 0; rank + 1 < ranks; ++rank) {
    terms.push_back(full.is_floating_point() ? at::rand_like(full) : at::randint_like(full, 3));
    rest -= terms.back();
  }
  terms.push_back(rest);
  return terms;
}

inline at::Tensor LocalOf(const at::Tensor& full, const Layout& layout, int64_t rank, int64_t ranks) {
  at::Tensor local = full.clone();
  int64_t full_size = -1;
  if (layout.is_shard()) {
    full_size = full.size(layout.dim);
    const DimShards shards = DimShards::Make(layout, full_size, ranks).ValueOrThrow();
    local = full.index_select(layout.dim, IndicesOf(shards.of(rank)));
  } else if (layout.kind == LayoutKind::kPartial) {
    local = TermsOf(full, ranks)[static_cast<size_t>(rank)];
  }
  return OneAxis::As(local, layout.kind == LayoutKind::kReplicate
                                ? AxisType::Replicate()
                                : TypeOfLayout(layout, local.sizes(), full_size, ranks, rank));
}

struct RankRun {
  Tensors made;
  std::vector<AxisType> types;
};

// Nothing where the rules or the operators refuse the layouts. `why`: set to the reason, unless null.
inline std::optional<RankRun> RunOn(const Operation& operation, const std::vector<Layout>& layouts, int64_t rank,
                                    int64_t ranks, std::string* why = nullptr) {
  OperatorChecker checker({{MeshAxis::kTp, ranks, rank}}, RuleTable::BuiltIn());
  Tensors inputs;
  for (size_t i = 0; i < layouts.size(); ++i) inputs.push_back(LocalOf(operation.inputs[i], layouts[i], rank, ranks));
  RankRun out;
  std::string threw;
  try {
    const OperatorScope scope(checker);
    out.made = operation.body(inputs);
  } catch (const std::exception& error) {
    threw = why != nullptr ? error.what() : "the operator fails";  // the text has a stack trace, which takes long
  }
  if (why != nullptr) {
    *why = !checker.faults().empty()     ? checker.faults().front().what + ": " + checker.faults().front().message
           : !checker.unproven().empty() ? checker.unproven().begin()->first
                                         : threw;
  }
  if (!threw.empty() || !checker.faults().empty() || !checker.unproven().empty()) return std::nullopt;
  for (const at::Tensor& made : out.made) out.types.push_back(checker.Get(made)[0]);
  return out;
}

// The runs of all ranks; nothing where one refuses.
inline std::vector<RankRun> RunOnAll(const Operation& operation, const std::vector<Layout>& layouts, int64_t ranks,
                                     std::string* why = nullptr) {
  std::vector<RankRun> out;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::optional<RankRun> run = RunOn(operation, layouts, rank, ranks, why);
    if (!run) return {};
    out.push_back(std::move(*run));
  }
  return out;
}

inline bool SameNumbers(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-9, 1e-9, /*equal_nan=*/true);
}

// The slices along `dim`, sorted.
inline std::vector<std::vector<double>> SlicesOf(const at::Tensor& tensor, int64_t dim) {
  std::vector<std::vector<double>> out;
  for (int64_t i = 0; i < tensor.size(dim); ++i) {
    const at::Tensor slice = tensor.select(dim, i).to(at::kDouble).contiguous().flatten();
    out.emplace_back(slice.const_data_ptr<double>(), slice.const_data_ptr<double>() + slice.numel());
  }
  std::ranges::sort(out);
  return out;
}

// Whether the results of the ranks are, by their type, what the full result is. Results of other sizes are not judged:
// sizes are compared with those of the unsharded step (prove/step_sizes.h), unless they follow values.
inline bool IsAsTyped(const std::vector<RankRun>& runs, size_t i, const at::Tensor& full) {
  if (std::ranges::any_of(runs, [&](const RankRun& run) { return i >= run.made.size(); })) return true;
  const AxisType& type = runs.front().types[i];
  Tensors made;
  for (const RankRun& run : runs) made.push_back(run.made[i]);
  const auto other_sizes = [&](const at::Tensor& own) { return own.sizes() != full.sizes(); };
  switch (type.kind) {
    case TypeKind::kReplicate:
      if (std::ranges::any_of(made, other_sizes)) return !type.by_value;
      return std::ranges::all_of(made, [&](const at::Tensor& own) { return SameNumbers(own, full); });
    case TypeKind::kPartial: {
      if (std::ranges::any_of(made, other_sizes)) return !type.by_value;
      const at::Tensor sum = at::stack(made).sum(0);
      return SameNumbers(type.mean ? sum / static_cast<int64_t>(made.size()) : sum, full);
    }
    case TypeKind::kShard: {
      if (type.lead != 1) return true;
      if (type.dim >= full.dim()) return false;
      if (type.map == nullptr) {
        const at::Tensor joined = at::cat(made, type.dim);
        if (type.chosen != nullptr && !type.chosen->in_order)
          return SlicesOf(joined, type.dim) == SlicesOf(full, type.dim);
        return (joined.sizes() != full.sizes() && !type.by_value) || SameNumbers(joined, full);
      }
      for (size_t rank = 0; rank < made.size(); ++rank) {
        if (type.map->size() != full.size(type.dim)) return true;
        const at::Tensor expected = full.index_select(type.dim, IndicesOf(type.map->of(static_cast<int64_t>(rank))));
        if (expected.sizes() == made[rank].sizes() && !SameNumbers(made[rank], expected)) return false;
      }
      return true;
    }
    default: return true;
  }
}

}  // namespace moonshard::test
