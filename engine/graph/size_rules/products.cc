#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/size_rules/dims.h"
#include "engine/graph/size_rules/rules.h"

namespace moonshard::graph::rules {

void Linear(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const LocalTensor* weight = n.Tensor("weight");
  if (input == nullptr || weight == nullptr || input->dims.empty() || weight->dims.size() != 2) return;
  if (!n.Agree(input->dims.back(), weight->dims[1], "the feature dims of its input and of its weight")) return;
  const bool terms = weight->dims[1].is_sharded() || input->terms;
  Dims out(input->dims.begin(), input->dims.end() - 1);
  out.push_back(weight->dims[0]);
  if (const LocalTensor* bias = n.Tensor("bias"); bias != nullptr && bias->dims.size() == 1) {
    if (!n.Agree(weight->dims[0], bias->dims[0], "the output feature dims of its weight and of its bias")) return;
  }
  n.Set(0, std::move(out), terms);
}

namespace {

// Batch dims broadcast; the last of `a` and the one before the last of `b` are summed over.
void MultiplyMatrices(NodeSizes& n, const LocalTensor& a, const LocalTensor& b) {
  if (a.dims.empty() || b.dims.empty()) return;
  const bool row = a.dims.size() == 1;
  const bool column = b.dims.size() == 1;
  const LocalDim& left = a.dims.back();
  const LocalDim& right = column ? b.dims.back() : b.dims[b.dims.size() - 2];
  if (!n.Agree(left, right, "the contracted dims")) return;
  const LocalTensor batch_a = Front(a, row ? 1 : 2);
  const LocalTensor batch_b = Front(b, column ? 1 : 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  if (!row) out->push_back(a.dims[a.dims.size() - 2]);
  if (!column) out->push_back(b.dims.back());
  n.Set(0, std::move(*out), left.is_sharded() || a.terms || b.terms);
}

}  // namespace

void Matmul(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Find("mat2") != nullptr ? n.Tensor("mat2") : n.Tensor("other");
  if (b == nullptr) b = n.Tensor("vec");
  if (a != nullptr && b != nullptr) MultiplyMatrices(n, *a, *b);
}

void AddMatmul(NodeSizes& n) {
  const LocalTensor* bias = n.Tensor("self");
  const bool batched = n.node().target == "aten::baddbmm";
  const LocalTensor* a = n.Tensor(batched ? "batch1" : "mat1");
  const LocalTensor* b = n.Tensor(batched ? "batch2" : "mat2");
  if (bias == nullptr || a == nullptr || b == nullptr) return;
  MultiplyMatrices(n, *a, *b);
  if (n.in_conflict() || n.results.empty() || !n.results[0].known) return;
  const LocalTensor made = n.results[0];
  if (std::optional<Dims> out = Broadcast(n, {&made, bias})) n.Set(0, std::move(*out), made.terms);
}

void Einsum(NodeSizes& n) {
  const ProgramArgument* equation = n.Find("equation");
  const auto operands = n.Tensors();
  if (equation == nullptr || !operands || equation->text.find('.') != std::string::npos) return;
  std::string text;
  for (const char c : equation->text) {
    if (c != ' ') text += c;
  }
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return;
  std::map<char, LocalDim> letters;
  size_t at = 0;
  for (const LocalTensor* operand : *operands) {
    for (const LocalDim& dim : operand->dims) {
      if (at >= arrow || text[at] == ',') return;
      const auto [found, fresh] = letters.try_emplace(text[at++], dim);
      if (fresh || dim.full == 1) continue;
      if (found->second.full == 1) {
        found->second = dim;
      } else if (!n.Agree(found->second, dim, "in a dim that must be equal, two operands")) {
        return;
      }
    }
    if (at < arrow && text[at] == ',') ++at;
  }
  Dims out;
  bool terms = false;
  const std::string made = text.substr(arrow + 2);
  for (const char letter : made) {
    if (!letters.contains(letter)) return;
    out.push_back(letters[letter]);
  }
  const LocalDim* first = nullptr;
  for (const auto& [letter, dim] : letters) {
    if (!dim.is_sharded()) continue;
    if (made.find(letter) == std::string::npos) terms = true;
    if (first != nullptr) {
      RefuseTwoShards(n, *first, dim);
      return;
    }
    first = &dim;
  }
  n.Set(0, std::move(out), terms);
}

void GroupedMatmul(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Tensor("mat2");
  const LocalTensor* ends = n.Tensor("offs");
  if (a == nullptr || b == nullptr || a->dims.size() != 2 || b->dims.size() != 3) return;
  if (b->dims[0].is_sharded()) {  // the rows of other ranks' experts have no values
    n.of_local_experts = true;
    return;
  }
  if (!n.Agree(a->dims[1], b->dims[1], "the feature dims of the rows and of the expert weights")) return;
  if (ends != nullptr && ends->dims.size() == 1 &&
      !n.Agree(ends->dims[0], b->dims[0], "the dims of the row groups and of the experts"))
    return;
  n.Set(0, {a->dims[0], b->dims[2]}, a->dims[1].is_sharded() || a->terms);
}

void Attention(NodeSizes& n) {
  const LocalTensor* q = n.Tensor("query");
  const LocalTensor* k = n.Tensor("key");
  const LocalTensor* v = n.Tensor("value");
  if (q == nullptr || k == nullptr || v == nullptr) return;
  const size_t rank = q->dims.size();
  if (rank < 2 || k->dims.size() != rank || v->dims.size() != rank) return;
  const ProgramArgument* gqa = n.Find("enable_gqa");
  const bool grouped = gqa != nullptr && gqa->integer != 0;
  for (size_t i = 0; i + 2 < rank; ++i) {
    const bool heads = i + 3 == rank;
    if (!n.Agree(k->dims[i], v->dims[i], "in a dim that must be equal, keys and values")) return;
    if (!heads || !grouped) {
      if (!n.Agree(q->dims[i], k->dims[i],
                   heads ? "the dims of the query heads and of the key heads"
                         : "in a dim that must be equal, queries and keys"))
        return;
    } else if (k->dims[i].local == 0 || q->dims[i].local % k->dims[i].local != 0) {
      n.Conflict(Kind::kOperands,
                 "on a rank, the number of query heads (" + SizeText(q->dims[i]) +
                     ") is not a multiple of the number of key heads (" + SizeText(k->dims[i]) + ")",
                 k->dims[i].local, q->dims[i].local, &q->dims[i], &k->dims[i]);
      return;
    } else if (const int64_t parts = PartCount(q->dims[i]);
               q->dims[i].is_sharded() && !k->dims[i].is_sharded() && parts > 0 && parts % k->dims[i].full != 0) {
      n.Conflict(Kind::kOperands,
                 "a rank has all key heads (" + SizeText(k->dims[i]) + "), but the query heads of only some of them (" +
                     SizeText(q->dims[i]) + ")",
                 k->dims[i].local, q->dims[i].local, &q->dims[i], &k->dims[i]);
      return;
    }
  }
  if (const LocalDim& keys = k->dims[rank >= 3 ? rank - 3 : 0];
      grouped && rank >= 3 && keys.is_sharded() &&
      keys.local * q->dims[rank - 3].full == q->dims[rank - 3].local * keys.full) {
    LocalDim repeated = keys;  // each key head for the query heads that use it
    const LocalDim& queries = q->dims[rank - 3];
    repeated.full = queries.full;
    repeated.local = keys.local * queries.full / std::max<int64_t>(keys.full, 1);
    repeated.in_order = keys.in_order && ScaleParts(keys, repeated);
    if (!n.Agree(queries, repeated, "the query heads and the key heads that they use")) return;
  }
  if (!n.Agree(q->dims[rank - 1], k->dims[rank - 1], "the feature dims of queries and keys")) return;
  if (!n.Agree(k->dims[rank - 2], v->dims[rank - 2], "the token dims of keys and values")) return;
  const ProgramArgument* causal = n.Find("is_causal");
  const bool counts_queries = causal != nullptr && causal->integer != 0;
  for (const LocalDim* dim : {&k->dims[rank - 2], &k->dims[rank - 1], counts_queries ? &q->dims[rank - 2] : nullptr}) {
    if (dim == nullptr || !dim->is_sharded()) continue;
    NeedsFullDim(n, *dim);
    return;
  }
  if (const LocalTensor* mask = n.Tensor("attn_mask"); mask != nullptr) {
    LocalTensor scores = Front(*q, 0);
    scores.dims.back() = k->dims[rank - 2];
    if (!Broadcast(n, {&scores, mask})) return;
  }
  Dims out = q->dims;
  out.back() = v->dims.back();
  n.Set(0, std::move(out));
}

void Convolution(NodeSizes& n) {
  const LocalTensor* input = n.Tensor("input");
  const LocalTensor* weight = n.Tensor("weight");
  if (input == nullptr || weight == nullptr) return;
  const LocalNumber groups = n.Number("groups", 1);
  const std::vector<int64_t>& full = n.FullSizes(0);
  const size_t spatial = weight->dims.size() - 2;
  if (!groups.known() || weight->dims.size() < 3 || full.size() != input->dims.size() || full.size() <= spatial) return;
  const size_t channels = full.size() - spatial - 1;
  const LocalDim& in = input->dims[channels];
  const int64_t wanted = weight->dims[1].local * *groups.local;
  if (in.local != wanted || weight->dims[0].local % std::max<int64_t>(*groups.local, 1) != 0) {
    const LocalDim& sharded = in.is_sharded() ? in : weight->dims[0];
    const bool integer = groups.literal && *groups.full > 1;
    n.Conflict(integer ? Kind::kInteger : Kind::kOperands,
               in.local != wanted
                   ? "its input has " + SizeText(in) + " channels, but its weight requires " + std::to_string(wanted) +
                         " input channels on a rank (groups: " + SizeText(groups) + ")"
                   : "the number of output channels of its weight (" + SizeText(weight->dims[0]) +
                         ") is not a multiple of the number of groups (" + SizeText(groups) + ")",
               *groups.local, *groups.full * sharded.local / std::max<int64_t>(sharded.full, 1), &sharded,
               in.is_sharded() ? &weight->dims[0] : &in, integer ? static_cast<int32_t>(n.index()) : LocalDim::kNone);
    return;
  }
  const LocalTensor* bias = n.Tensor("bias");
  const bool by_channel = weight->dims[1].full == 1 && weight->dims[0].full == in.full;
  const char* const channels_of = "the channels of its input and of its weight";
  if (*groups.full == 1 && !n.Agree(in, weight->dims[1], channels_of)) return;
  if (by_channel && !n.Agree(in, weight->dims[0], channels_of)) return;
  if (bias != nullptr && bias->dims.size() == 1 &&
      !n.Agree(weight->dims[0], bias->dims[0], "the output channels of its weight and of its bias"))
    return;
  Dims out(full.size());
  for (size_t i = 0; i < channels; ++i) out[i] = input->dims[i];
  out[channels] = weight->dims[0];
  for (size_t i = channels + 1; i < full.size(); ++i) {
    if (input->dims[i].is_sharded()) return;
    out[i].full = out[i].local = full[i];
  }
  n.Set(0, std::move(out), weight->dims[1].is_sharded());
}

void SolveTriangular(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("self");
  const LocalTensor* b = n.Tensor("B");
  if (a == nullptr || b == nullptr || a->dims.size() < 2 || b->dims.size() < 2) return;
  const LocalTensor batch_a = Front(*a, 2);
  const LocalTensor batch_b = Front(*b, 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  out->insert(out->end(), b->dims.end() - 2, b->dims.end());
  n.Set(0, std::move(*out));
}

void Cross(NodeSizes& n) {
  const LocalTensor* self = n.Tensor("self");
  const LocalTensor* other = n.Tensor("other");
  if (self == nullptr || other == nullptr) return;
  std::optional<Dims> out = Broadcast(n, {self, other});
  if (!out || out->empty()) return;
  const bool by_last = n.node().target == "aten::linalg_cross" && n.Find("dim") == nullptr;
  const auto dim = by_last ? std::optional<size_t>(out->size() - 1) : n.Dim("dim", out->size());
  if (!dim) return;
  if ((*out)[*dim].is_sharded()) {
    NeedsFullDim(n, (*out)[*dim]);
    return;
  }
  n.Set(0, std::move(*out), self->terms || other->terms);
}

void Distances(NodeSizes& n) {
  const LocalTensor* a = n.Tensor("x1");
  const LocalTensor* b = n.Tensor("x2");
  if (a == nullptr || b == nullptr || a->dims.size() < 2 || b->dims.size() < 2) return;
  if (!n.Agree(a->dims.back(), b->dims.back(), "the feature dims of its operands")) return;
  for (const LocalTensor* one : {a, b}) {
    if (!one->dims.back().is_sharded()) continue;
    NeedsFullDim(n, one->dims.back());
    return;
  }
  const LocalTensor batch_a = Front(*a, 2);
  const LocalTensor batch_b = Front(*b, 2);
  std::optional<Dims> out = Broadcast(n, {&batch_a, &batch_b});
  if (!out) return;
  out->push_back(a->dims[a->dims.size() - 2]);
  out->push_back(b->dims[b->dims.size() - 2]);
  n.Set(0, std::move(*out));
}

void AlongBoth(NodeSizes& n) {
  const LocalTensor* first = n.Tensor("x1");
  const LocalTensor* second = n.Tensor("x2");
  if (first == nullptr || second == nullptr) return;
  std::optional<Dims> dims = Broadcast(n, {first, second});
  if (!dims || dims->empty()) return;
  const auto dim = n.Find("dim") != nullptr ? n.Dim("dim", dims->size()) : std::optional<size_t>(1);
  if (!dim || *dim >= dims->size()) return;
  if ((*dims)[*dim].is_sharded()) {
    NeedsFullDim(n, (*dims)[*dim]);
    return;
  }
  dims->erase(dims->begin() + static_cast<std::ptrdiff_t>(*dim));
  n.Set(0, std::move(*dims));
}

}  // namespace moonshard::graph::rules
