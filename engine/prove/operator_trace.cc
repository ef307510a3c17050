#include "engine/prove/operator_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/ATen.h>

#include "engine/base/check.h"

namespace moonshard {
namespace {

std::string KeyOf(const std::string& path, bool backward, const std::string& name) {
  return path + (backward ? "|b|" : "|f|") + name;
}

double Difference(const at::Tensor& got, const at::Tensor& want) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (!got.defined() || got.sizes() != want.sizes()) return kNone;
  if (want.numel() == 0) return 0;
  if (!want.is_floating_point()) return at::equal(got.to(want.scalar_type()), want) ? 0 : kNone;
  const at::Tensor a = got.to(at::kDouble);
  const at::Tensor b = want.to(at::kDouble);
  // Masked scores are minus infinity on both sides.
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const at::Tensor differ = a.sub(b).abs().masked_fill(same, 0);
  const at::Tensor finite = b.masked_fill(b.isfinite().logical_not(), 0).abs();
  const double largest = std::max(finite.max().item<double>(), 1e-6);
  const double difference = differ.max().item<double>() / largest;
  return std::isnan(difference) ? kNone : difference;
}

// The parts of a piece along its dim: one where it is not fused.
std::vector<int64_t> PartsOf(const AxisType& type) {
  return type.parts.empty() ? std::vector<int64_t>{type.length} : type.parts;
}

}  // namespace

std::function<void(const CheckedOperator&)> OperatorTrace::Recorder() {
  return [this](const CheckedOperator& op) {
    TracedOperator traced;
    traced.path = op.path;
    traced.backward = op.backward;
    traced.name = op.name;
    traced.place = places_[KeyOf(op.path, op.backward, op.name)]++;
    for (const at::Tensor& output : op.outputs) traced.outputs.push_back(output.detach().clone());
    for (const TensorType& type : op.types) traced.types.push_back(type);
    operators_.push_back(std::move(traced));
  };
}

at::Tensor Together(const AxisType& type, const std::vector<at::Tensor>& pieces, const std::vector<AxisType>& types,
                    int64_t whole_size, bool sum) {
  if (type.is_replicate()) return pieces.front();
  if (type.is_partial()) {
    at::Tensor total = pieces.front().clone();
    for (size_t r = 1; r < pieces.size(); ++r) {
      if (pieces[r].sizes() != total.sizes()) return {};
      total += pieces[r];
    }
    return type.mean ? total / static_cast<double>(pieces.size()) : total;
  }
  if (!type.is_shard()) return {};
  // Every piece as [in front, lead, piece, behind], its parts apart.
  const auto ranks = static_cast<int64_t>(pieces.size());
  const size_t parts = PartsOf(type).size();
  std::vector<std::vector<at::Tensor>> of_part(parts);
  std::vector<int64_t> total(parts, 0);
  for (size_t r = 0; r < pieces.size(); ++r) {
    const at::Tensor& piece = pieces[r];
    const std::vector<int64_t> lengths = PartsOf(types[r]);
    if (!types[r].is_shard() || types[r].dim != type.dim || lengths.size() != parts) return {};
    const int64_t size = piece.size(type.dim);
    const int64_t behind_lead = size / types[r].lead;
    const int64_t unit = types[r].length == 0 ? 0 : behind_lead / types[r].length;
    const at::Tensor open = piece.unflatten(type.dim, {types[r].lead, behind_lead});
    int64_t begin = 0;
    for (size_t p = 0; p < parts; ++p) {
      of_part[p].push_back(open.narrow(type.dim + 1, begin, lengths[p] * unit));
      begin += lengths[p] * unit;
      total[p] += lengths[p] * unit;
    }
  }
  // Fewer heads than ranks: the same heads on neighbours. What is not fused, or all but the first part.
  const int64_t have = std::accumulate(total.begin(), total.end(), int64_t{0}) * type.lead;
  int64_t copies = 1;
  const int64_t once = parts > 1 ? total[0] * type.lead : 0;
  if (have > whole_size && whole_size > once) copies = (have - once) / (whole_size - once);
  std::vector<at::Tensor> joined;
  for (size_t p = 0; p < parts; ++p) {
    const int64_t every = p == 0 && parts > 1 ? 1 : copies;
    std::vector<at::Tensor> own;
    for (int64_t r = 0; r + every <= ranks; r += every) {
      at::Tensor one = of_part[p][static_cast<size_t>(r)];
      for (int64_t c = 1; sum && c < every; ++c) one = one + of_part[p][static_cast<size_t>(r + c)];
      own.push_back(one);
    }
    joined.push_back(at::cat(own, type.dim + 1));
  }
  return at::cat(joined, type.dim + 1).flatten(type.dim, type.dim + 1);
}

namespace {

// All ranks' tensors, in rank order. Their shapes differ in one dim at most.
std::vector<at::Tensor> GatherAll(const at::Tensor& mine, AxisGroup& group, int64_t dim) {
  const CollectiveLabel label("the comparison of operators");
  const int64_t size = dim < 0 ? 0 : mine.size(dim);
  const std::vector<int64_t> sizes = group.ExchangeNumbers(size, label);
  const int64_t longest = *std::ranges::max_element(sizes);
  at::Tensor block = mine.to(mine.is_floating_point() ? at::kDouble : mine.scalar_type());
  if (block.scalar_type() == at::kBool) block = block.to(at::kByte);
  if (dim >= 0 && size < longest) {
    std::vector<int64_t> shape = block.sizes().vec();
    shape[static_cast<size_t>(dim)] = longest - size;
    block = at::cat({block, at::zeros(shape, block.options())}, dim);
  }
  block = block.unsqueeze(0).contiguous();
  const CollectiveUse use = {Direction::kForward, &label, block.sizes(), 0, -1};
  const at::Tensor all = group.AllGather(block, use);
  std::vector<at::Tensor> out;
  for (int64_t r = 0; r < group.size(); ++r) {
    const at::Tensor one = all[r];
    out.push_back(dim < 0 ? one : one.narrow(dim, 0, sizes[static_cast<size_t>(r)]));
  }
  return out;
}

// The type as each rank has it: pieces differ in length.
std::vector<AxisType> TypesOfRanks(const AxisType& mine, AxisGroup& group) {
  const CollectiveLabel label("the comparison of operators");
  std::vector<AxisType> out(static_cast<size_t>(group.size()), mine);
  const auto exchange = [&](int64_t value, auto&& set) {
    const std::vector<int64_t> all = group.ExchangeNumbers(value, label);
    for (size_t r = 0; r < all.size(); ++r) set(out[r], all[r]);
  };
  exchange(mine.length, [](AxisType& type, int64_t value) { type.length = value; });
  for (size_t p = 0; p < mine.parts.size(); ++p) {
    exchange(mine.parts[p], [p](AxisType& type, int64_t value) { type.parts[p] = value; });
  }
  return out;
}

}  // namespace

OperatorDifferences CompareOperators(const OperatorTrace& trace, const OperatorTrace& whole, AxisGroup& group,
                                     size_t index, double tolerance) {
  const CollectiveLabel label("the comparison of operators");
  std::map<std::pair<std::string, int64_t>, const TracedOperator*> found;
  for (const TracedOperator& op : whole.operators()) found[{KeyOf(op.path, op.backward, op.name), op.place}] = &op;
  OperatorDifferences out;
  for (const TracedOperator& op : trace.operators()) {
    const auto other = found.find({KeyOf(op.path, op.backward, op.name), op.place});
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const AxisType& type = op.types[i][index];
      const bool comparable = other != found.end() && i < other->second->outputs.size() &&
                              (type.is_replicate() || type.is_shard() || type.is_partial());
      // A rank that leaves one out leaves it out on every rank.
      const std::vector<int64_t> all = group.ExchangeNumbers(comparable ? static_cast<int64_t>(type.kind) : -1, label);
      if (!comparable || std::ranges::count(all, all.front()) != static_cast<int64_t>(all.size())) {
        ++out.left_out;
        continue;
      }
      const at::Tensor& want = other->second->outputs[i];
      const at::Tensor& mine = op.outputs[i];
      double difference;
      if (type.is_replicate()) {
        difference = Difference(mine, want);
        // Zeros or ones made for a piece are as large as the piece.
        if (mine.sizes() != want.sizes() && type.uniform != 0) difference = 0;
      } else {
        const int64_t dim = type.is_shard() ? type.dim : -1;
        const std::vector<at::Tensor> pieces = GatherAll(mine, group, dim);
        const std::vector<AxisType> types = TypesOfRanks(type, group);
        const int64_t size = dim >= 0 && dim < want.dim() ? want.size(dim) : 0;
        difference = Difference(Together(type, pieces, types, size, false), want);
        if (op.backward && difference > tolerance) {
          difference = std::min(difference, Difference(Together(type, pieces, types, size, true), want));
        }
      }
      ++out.compared;
      const double capped = std::min(difference, 1e6);
      const std::vector<int64_t> ranks = group.ExchangeNumbers(static_cast<int64_t>(capped * 1e12), label);
      difference = static_cast<double>(*std::ranges::max_element(ranks)) * 1e-12;
      if (difference > out.largest || out.largest_name.empty()) {
        out.largest = difference;
        out.largest_name = op.name + " in '" + op.path + "'" + (op.backward ? " (backward)" : "");
      }
      if (difference > tolerance && !out.first) {
        out.first = OperatorDifference{op.path, op.backward, op.name, type.ToString(), difference};
      }
    }
  }
  return out;
}

}  // namespace moonshard
