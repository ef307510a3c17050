// Constants that a forward makes as large as its shard, and what is then reduced over them: each program runs on one
// rank and on two, its numbers are compared, and the types must not call a wrong one proven or a right one faulty.
#include <catch2/catch.hpp>

#include <array>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/analysis/prove/type_scope.h"
#include "engine/analysis/types/typed_tensor.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

constexpr int64_t kShardedFeatures = 8;

using ConstantResults = std::vector<at::Tensor>;
// Of a shard h [2, 3, 8 / ranks], or [2, 8 / ranks, 3], and the number of its sharded dim, what a program computes: its
// result last, and in front of it what the result is computed from.
using ConstantProgram = std::function<ConstantResults(const at::Tensor& h, int64_t dim)>;

struct ConstantsImpl : torch::nn::Module {
  ConstantsImpl(ConstantProgram p, bool t) : program(std::move(p)), transposed(t) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(4, kShardedFeatures)));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = up(x);
    made = transposed ? program(h.transpose(1, 2).contiguous(), 1) : program(h, 2);
    types.clear();
    for (const at::Tensor& one : made) {
      const TensorType* const type = TypeOf(one);
      types.push_back(type == nullptr || type->empty() ? AxisType::Of(TypeKind::kUnproven) : type->front());
    }
    return h;
  }
  ConstantProgram program;
  bool transposed;
  ConstantResults made;
  std::vector<AxisType> types;
  nn::Linear up = nullptr;
};
MOONSHARD_MODULE(Constants);

struct OuterImpl : torch::nn::Module {
  OuterImpl(const ConstantProgram& program, bool transposed) {
    block = register_module("block", Constants(program, transposed));
  }
  at::Tensor forward(const at::Tensor& x) { return block(x); }
  Constants block = nullptr;
};

struct ConstantRun {
  ConstantResults full;                 // with one rank
  std::array<ConstantResults, 2> made;  // of two
  AxisType type;                        // of the result, on rank 0
  bool faulty = false;
  bool holds = false;
  std::string text;
};

ConstantRun RunProgram(const ConstantProgram& program, bool transposed) {
  ConstantRun out;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto step = [&](const DeviceMesh& mesh, const TypeOptions& options) {
      torch::manual_seed(3);
      auto net = std::make_shared<OuterImpl>(program, transposed);
      net->to(at::kDouble);
      const auto applied = ParallelizeModule(*net, PlanOfRules("constants", {{"block.up", ColwiseStyle()}}), mesh);
      const at::Tensor x = torch::rand({2, 3, 4}, at::kDouble);
      TypeScope scope(*applied, options);
      try {
        net->forward(x);
      } catch (const c10::Error& error) {
        scope.Stopped(error.what_without_backtrace());
      }
      const bool alone = mesh.shape().size(MeshAxis::kTp) == 1;
      (alone ? out.full : out.made[static_cast<size_t>(rank)]) = net->block->made;
      if (!alone && rank == 0 && !net->block->types.empty()) out.type = net->block->types.back();
      return scope.Finish();
    };
    const Proof proof = ProveAtTwoSizes(MeshShape::Parse("tp=2").ValueOrThrow(), step, {}, rank);
    out.faulty = out.faulty || !proof.faults.empty();
    out.holds = (rank == 0 || out.holds) && proof.holds();
    out.text += ToText(proof);
  }
  return out;
}

bool SameValues(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a.to(at::kDouble), b.to(at::kDouble), 1e-9, 1e-9, /*equal_nan=*/true);
}

// Whether the ranks' tensors are the full one: the same, terms of it, or its shards.
bool IsOf(const at::Tensor& full, const at::Tensor& a, const at::Tensor& b) {
  if (SameValues(a, full) && SameValues(b, full)) return true;
  if (a.sizes() == full.sizes() && SameValues(a.to(at::kDouble) + b.to(at::kDouble), full)) return true;
  for (int64_t d = 0; d < full.dim(); ++d) {
    if (a.dim() == full.dim() && a.sizes() == b.sizes() && a.size(d) * 2 == full.size(d) &&
        SameValues(at::cat({a, b}, d), full))
      return true;
  }
  return false;
}

// Whether the result of the ranks is, as its type says, that of one rank.
bool IsOfType(const ConstantRun& ran) {
  const at::Tensor& full = ran.full.back();
  const at::Tensor& a = ran.made[0].back();
  const at::Tensor& b = ran.made[1].back();
  switch (ran.type.kind) {
    case TypeKind::kPartial: {
      const at::Tensor sum = a.to(at::kDouble) + b.to(at::kDouble);
      return SameValues(ran.type.mean ? sum / 2 : sum, full);
    }
    case TypeKind::kShard: return SameValues(at::cat({a, b}, ran.type.dim), full);
    case TypeKind::kReplicate: {
      at::Tensor shared = full;
      for (int64_t d = 0; d < full.dim(); ++d) {
        if (ran.type.local_along(d)) shared = shared.narrow(d, 0, shared.size(d) / 2);
      }
      return SameValues(a, shared) && SameValues(b, shared);
    }
    default: return false;
  }
}

enum class FoundBy { kProven, kUnproven, kFault };

struct Judged {
  bool right = true;
  FoundBy found = FoundBy::kProven;
  std::string text;
};

Judged JudgeProgram(const ConstantProgram& program, bool transposed) {
  const ConstantRun ran = RunProgram(program, transposed);
  Judged out;
  out.text = ran.text + "  result: " + ran.type.ToString() + "\n";
  out.found = ran.faulty ? FoundBy::kFault : ran.holds ? FoundBy::kProven : FoundBy::kUnproven;
  const size_t count = ran.full.size();
  out.right = count > 0 && ran.made[0].size() == count && ran.made[1].size() == count;
  for (size_t i = 0; out.right && i < count; ++i) out.right = IsOf(ran.full[i], ran.made[0][i], ran.made[1][i]);
  // What is proven is right as its type says, and not in any other way.
  if (out.found == FoundBy::kProven) out.right = IsOfType(ran);
  return out;
}

// A constant of the sizes of h; of those of its last dims where it has fewer.
struct MadeConstant {
  const char* name;
  std::function<at::Tensor(const at::Tensor& h, int64_t dim)> make;
};

const std::vector<MadeConstant>& AllConstants() {
  static const std::vector<MadeConstant> all = {
      {"ones", [](const at::Tensor& h, int64_t) { return torch::ones(h.sizes(), h.options()); }},
      {"zeros", [](const at::Tensor& h, int64_t) { return torch::zeros(h.sizes(), h.options()); }},
      {"full", [](const at::Tensor& h, int64_t) { return torch::full(h.sizes(), 2.5, h.options()); }},
      {"full of 0", [](const at::Tensor& h, int64_t) { return torch::full(h.sizes(), 0, h.options()); }},
      {"empty, filled", [](const at::Tensor& h, int64_t) { return torch::empty(h.sizes(), h.options()).fill_(3); }},
      {"ones_like", [](const at::Tensor& h, int64_t) { return torch::ones_like(h); }},
      {"zeros_like", [](const at::Tensor& h, int64_t) { return torch::zeros_like(h); }},
      {"full_like", [](const at::Tensor& h, int64_t) { return torch::full_like(h, 2.5); }},
      {"empty_like, filled", [](const at::Tensor& h, int64_t) { return torch::empty_like(h).fill_(3); }},
      {"empty_like, copied into",
       [](const at::Tensor& h, int64_t) { return torch::empty_like(h).copy_(torch::ones({1}, h.options())); }},
      {"new_ones", [](const at::Tensor& h, int64_t) { return h.new_ones(h.sizes()); }},
      {"new_zeros", [](const at::Tensor& h, int64_t) { return h.new_zeros(h.sizes()); }},
      {"new_full", [](const at::Tensor& h, int64_t) { return h.new_full(h.sizes(), 2.5); }},
      {"new_empty, filled", [](const at::Tensor& h, int64_t) { return h.new_empty(h.sizes()).fill_(3); }},
      {"filled in place", [](const at::Tensor& h, int64_t) { return h.detach().clone().fill_(2); }},
      {"zeros + 1", [](const at::Tensor& h, int64_t) { return torch::zeros(h.sizes(), h.options()) + 1; }},
      {"ones_like * 2 + 1", [](const at::Tensor& h, int64_t) { return torch::ones_like(h) * 2 + 1; }},
      {"ones of the sharded dim and of others",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {5, 5, 5};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         return torch::ones(sizes, h.options());
       }},
      {"scalar_tensor, expanded",
       [](const at::Tensor& h, int64_t) { return at::scalar_tensor(2.0, h.options()).expand(h.sizes()); }},
      {"a parameter's size, expanded",
       [](const at::Tensor& h, int64_t) {
         return torch::ones({3, 1, 1, 1}, h.options()).select(0, 1).expand_as(h);
       }},
      {"arange",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {1, 1, 1};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         return torch::arange(h.size(dim), h.options()).view(sizes);
       }},
      {"eye",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {1, h.size(dim), h.size(dim)};
         return torch::eye(h.size(dim), h.options()).view(sizes);
       }},
      {"linspace",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {1, 1, 1};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         return torch::linspace(0, 1, h.size(dim), h.options()).view(sizes);
       }},
      {"tensor of a vector of ones",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {1, 1, 1};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         return torch::tensor(std::vector<double>(static_cast<size_t>(h.size(dim)), 1), h.options()).view(sizes);
       }},
      {"tensor of a vector of numbers",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> sizes = {1, 1, 1};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         std::vector<double> values;
         for (int64_t i = 0; i < h.size(dim); ++i) values.push_back(static_cast<double>(i) + 1);
         return torch::tensor(values, h.options()).view(sizes);
       }},
      {"tensor of the host's memory",
       [](const at::Tensor& h, int64_t dim) {
         static std::vector<double> values(64, 1.5);
         std::vector<int64_t> sizes = {1, 1, 1};
         sizes[static_cast<size_t>(dim)] = h.size(dim);
         return torch::from_blob(values.data(), sizes, h.options());
       }},
      {"tril of ones", [](const at::Tensor& h, int64_t) { return torch::ones_like(h).tril(); }},
      {"triu of ones", [](const at::Tensor& h, int64_t) { return torch::ones(h.sizes(), h.options()).triu(1); }},
      {"ones, viewed",
       [](const at::Tensor& h, int64_t dim) {
         std::vector<int64_t> open = h.sizes().vec();
         open[static_cast<size_t>(dim)] = h.size(dim) / 2;
         open.insert(open.begin() + dim + 1, 2);
         return torch::ones(h.sizes(), h.options()).view(open).flatten(dim, dim + 1);
       }},
      {"ones, of two",
       [](const at::Tensor& h, int64_t) {
         return at::cat({at::ones_like(h), at::zeros_like(h)}, 0);
       }},
      {"ones, stacked",
       [](const at::Tensor& h, int64_t) {
         return at::stack({at::ones_like(h), at::zeros_like(h)}, 0).select(0, 0);
       }},
      {"where", [](const at::Tensor& h,
                   int64_t) { return at::where(at::ones_like(h).gt(0), at::full_like(h, 2), at::zeros_like(h)); }},
      {"masked_fill",
       [](const at::Tensor& h, int64_t) { return at::zeros_like(h).masked_fill(at::ones_like(h).gt(0), 4); }},
      {"a bool", [](const at::Tensor& h, int64_t) { return at::ones_like(h).gt(0).to(at::kDouble); }},
      {"index_put",
       [](const at::Tensor& h, int64_t) {
         return at::zeros_like(h).index_put_({at::ones({1}, at::kLong)}, at::ones({1}, h.options()));
       }},
      {"repeated",
       [](const at::Tensor& h, int64_t) {
         return torch::ones({1, 1, 1}, h.options()).repeat(h.sizes());
       }},
      {"scatter",
       [](const at::Tensor& h, int64_t) {
         const at::Tensor index = at::ones_like(h, h.options().dtype(at::kLong)).narrow(0, 0, 1);
         return at::zeros_like(h).scatter(0, index, 3.0);
       }},
      {"one_hot",
       [](const at::Tensor& h, int64_t dim) {
         const at::Tensor ids = torch::ones({h.size(dim)}, h.options().dtype(at::kLong));
         const at::Tensor hot = at::one_hot(ids, 3).to(at::kDouble);
         return dim == 2 ? hot.t().unsqueeze(0) : hot.unsqueeze(0);
       }},
      {"rows of a table",
       [](const at::Tensor& h, int64_t dim) {
         const at::Tensor ids = torch::ones({h.size(dim)}, h.options().dtype(at::kLong));
         const at::Tensor rows = at::embedding(at::ones({3, 3}, h.options()).cumsum(1), ids);
         return dim == 2 ? rows.t().unsqueeze(0) : rows.unsqueeze(0);
       }},
      {"rows at an index", [](const at::Tensor& h,
                              int64_t) { return at::ones(h.sizes(), h.options()).index({at::zeros({4}, at::kLong)}); }},
      {"written in part",
       [](const at::Tensor& h, int64_t) {
         at::Tensor out = at::zeros_like(h);
         out.select(0, 1).fill_(2);
         return out;
       }},
      {"cumsum over another dim", [](const at::Tensor& h, int64_t) { return at::ones_like(h).cumsum(0); }},
      {"softmax over another dim", [](const at::Tensor& h, int64_t) { return at::ones_like(h).softmax(0); }},
      {"sum over another dim",
       [](const at::Tensor& h, int64_t) { return at::ones(h.sizes(), h.options()).sum(0, /*keepdim=*/true); }},
  };
  return all;
}

// What is computed of a constant c with dims as h.
struct Reduced {
  const char* name;
  std::function<ConstantResults(const at::Tensor& c, const at::Tensor& h, int64_t dim)> reduce;
};

const std::vector<Reduced>& Reductions() {
  static const std::vector<Reduced> all = {
      {"nothing", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.clone()}; }},
      {"sum over the dim",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.sum(d)}; }},
      {"sum over the dim, kept",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.sum(d, true)}; }},
      {"sum of all", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.sum()}; }},
      {"sum over another dim",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.sum(0)}; }},
      {"mean over the dim",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.mean(d)}; }},
      {"mean of all", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.mean()}; }},
      {"prod", [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.prod(d)}; }},
      {"norm", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.norm()}; }},
      {"vector norm",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {at::linalg_vector_norm(c, 2, d)};
       }},
      {"amax", [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.amax(d)}; }},
      {"min of all", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.min()}; }},
      {"argmax", [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.argmax(d)}; }},
      {"median",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {std::get<0>(c.contiguous().median(d))};
       }},
      {"any", [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.gt(0).any(d)}; }},
      {"all", [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.gt(0).all()}; }},
      {"logsumexp",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.logsumexp(d)}; }},
      {"last of cumsum",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         const at::Tensor sums = c.cumsum(d);
         return {sums, sums.select(d, -1)};
       }},
      {"bincount",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults {
         return {c.to(at::kLong).flatten().bincount()};
       }},
      {"count_nonzero",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {c.count_nonzero()}; }},
      {"product with it",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {d == 2 ? c.matmul(c.transpose(1, 2)) : c.transpose(1, 2).matmul(c)};
       }},
      {"product of the shard with it",
       [](const at::Tensor& c, const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor one = c.select(0, 0);
         return {d == 2 ? h.matmul(one.transpose(0, 1)) : h.transpose(1, 2).matmul(one)};
       }},
      {"var",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {c.var(d, /*unbiased=*/false)};
       }},
      {"softmax", [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.softmax(d)}; }},
      {"sort",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {std::get<0>(c.sort(d))}; }},
      {"product by elements",
       [](const at::Tensor& c, const at::Tensor& h, int64_t) -> ConstantResults { return {h * c.narrow(0, 0, 1)}; }},
      {"mean by a count",
       [](const at::Tensor& c, const at::Tensor& h, int64_t d) -> ConstantResults {
         return {h.sum(d) / (c.narrow(0, 0, 1) + 1).sum(d)};
       }},
      {"sum and count",
       [](const at::Tensor& c, const at::Tensor& h, int64_t d) -> ConstantResults {
         return {h.sum(d) + c.narrow(0, 0, 1).sum(d)};
       }},
      {"mean squared error",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults {
         return {at::mse_loss(c, at::zeros_like(c))};
       }},
      {"summed squared error",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults {
         return {at::mse_loss(c, at::zeros_like(c), at::Reduction::Sum)};
       }},
      {"count by index_add",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         const at::Tensor row = c.select(0, 0).select(d == 2 ? 0 : 1, 0);
         return {at::zeros({3}, c.options()).index_add(0, torch::ones({row.size(0)}, at::kLong), row)};
       }},
      {"count by scatter_add",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         const at::Tensor row = c.select(0, 0).select(d == 2 ? 0 : 1, 0);
         return {at::zeros({3}, c.options()).scatter_add(0, at::ones_like(row, at::kLong), row)};
       }},
      {"count by index_put",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         const at::Tensor row = c.select(0, 0).select(d == 2 ? 0 : 1, 0);
         return {
             at::zeros({3}, c.options()).index_put({torch::ones({row.size(0)}, at::kLong)}, row, /*accumulate=*/true)};
       }},
      {"put at an index",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         const at::Tensor row = c.select(0, 0).select(d == 2 ? 0 : 1, 0);
         return {at::zeros({3}, c.options()).scatter(0, at::ones_like(row, at::kLong), row)};
       }},
      {"positions",
       [](const at::Tensor& c, const at::Tensor&, int64_t) -> ConstantResults { return {at::nonzero(c)}; }},
      {"one element",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.select(d, 0)}; }},
      {"sum of the first elements",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults { return {c.narrow(d, 0, 1).sum(d)}; }},
      {"sum of the first half",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {c.narrow(d, 0, c.size(d) / 2).sum(d)};
       }},
      {"sum of two, one after the other",
       [](const at::Tensor& c, const at::Tensor&, int64_t d) -> ConstantResults {
         return {at::cat({c, c}, d).sum(d)};
       }},
  };
  return all;
}

TEST_CASE("constants as large as a shard are typed as their numbers are") {
  std::map<std::string, int64_t> table;
  for (const bool transposed : {false, true}) {
    for (const MadeConstant& made : AllConstants()) {
      for (const Reduced& reduced : Reductions()) {
        const Judged judged = JudgeProgram(
            [&](const at::Tensor& h, int64_t dim) {
              ConstantResults out = {made.make(h, dim)};
              for (const at::Tensor& one : reduced.reduce(out.front(), h, dim)) out.push_back(one);
              return out;
            },
            transposed);
        INFO(made.name << ": " << reduced.name << (transposed ? ", transposed" : "") << "\n" << judged.text);
        CHECK_FALSE((!judged.right && judged.found == FoundBy::kProven));
        CHECK_FALSE((judged.right && judged.found == FoundBy::kFault));
        constexpr std::array kNames = {"proven", "unproven", "fault"};
        const std::string row =
            (judged.right ? "right, " : "wrong, ") + std::string(kNames[static_cast<size_t>(judged.found)]);
        ++table[row];
        if (judged.right && judged.found == FoundBy::kUnproven)
          std::cout << "  right, unproven: " << made.name << ": " << reduced.name << (transposed ? ", transposed" : "")
                    << "\n";
      }
    }
  }
  std::cout << "constants as large as a shard:";
  for (const auto& [what, count] : table) std::cout << " " << what << ": " << count << ";";
  std::cout << "\n";
}

// n: the length of the shard.
const std::vector<std::pair<const char*, ConstantProgram>>& ProgramsBesideShards() {
  const auto length = [](const at::Tensor& h, int64_t dim) { return h.size(dim); };
  static const std::vector<std::pair<const char*, ConstantProgram>> all = {
      {"one more than a shard",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({length(h, d) + 1}, h.options()).sum()};
       }},
      {"at most five",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({std::min<int64_t>(length(h, d), 5)}, h.options()).sum()};
       }},
      {"one less than a shard",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {at::ones_like(h).narrow(d, 1, length(h, d) - 1).sum(d)};
       }},
      {"the rest of a split",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {at::ones_like(h).split_with_sizes({1, length(h, d) - 1}, d)[1].sum(d)};
       }},
      {"repeated once more",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({1}, h.options()).expand({length(h, d) + 1}).sum()};
       }},
      {"repeated at most five times",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({1}, h.options()).expand({std::min<int64_t>(length(h, d), 5)}).sum()};
       }},
      {"repeated as often as the shard is long",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({1}, h.options()).expand({length(h, d)}).sum()};
       }},
      {"along two dims",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({length(h, d), length(h, d)}, h.options()).sum()};
       }},
      {"repeated along two dims",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         return {torch::ones({length(h, d)}, h.options()).repeat({length(h, d), 1}).sum()};
       }},
      {"a loss of two dims",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor row = torch::ones({1, length(h, d)}, h.options());
         return {at::mse_loss(row, torch::zeros({length(h, d), 1}, h.options()), at::Reduction::Sum)};
       }},
      {"added at pairs",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor rows = torch::zeros({length(h, d), 1}, h.options().dtype(at::kLong));
         at::Tensor sums = torch::zeros({1, 1}, h.options());
         return {sums.index_put_({rows, rows.t()}, torch::ones({1, 1}, h.options()), /*accumulate=*/true)};
       }},
      {"the first is no token",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor mask = torch::ones({2, length(h, d)}, h.options());
         mask.narrow(1, 0, 1).zero_();
         return {mask.sum(1)};
       }},
      {"the mean of a mask",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor mask = torch::ones({2, length(h, d)}, h.options());
         mask.narrow(1, 0, 1).zero_();
         return {mask.mean(1)};
       }},
      {"written through a transposition",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor mask = torch::ones({2, length(h, d)}, h.options());
         mask.t().select(0, 0).fill_(3);
         return {mask.sum(1)};
       }},
      {"copied into a part",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         const at::Tensor mask = torch::ones({2, length(h, d)}, h.options());
         mask.narrow(1, 0, 1).copy_(torch::full({2, 1}, 4, h.options()));
         return {mask.sum(1)};
       }},
      {"a diagonal",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         at::Tensor mask = torch::ones({3, length(h, d)}, h.options());
         return {mask.fill_diagonal_(0).sum()};
       }},
      {"a shard, repeated as often as it is long",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults {
         std::vector<int64_t> sizes = h.sizes().vec();
         sizes.push_back(length(h, d));
         return {h.unsqueeze(-1).expand(sizes).sum(-1)};
       }},
      {"a sum, repeated as often",
       [=](const at::Tensor& h, int64_t d) -> ConstantResults { return {h.sum().expand({length(h, d)}).sum()}; }},
  };
  return all;
}

TEST_CASE("constants of other lengths, along two dims or written in part are not proven as a shard's") {
  int64_t wrong = 0;
  for (const bool transposed : {false, true}) {
    for (const auto& [name, program] : ProgramsBesideShards()) {
      const Judged judged = JudgeProgram(program, transposed);
      INFO(name << (transposed ? ", transposed" : "") << "\n" << judged.text);
      CHECK_FALSE((!judged.right && judged.found == FoundBy::kProven));
      CHECK_FALSE((judged.right && judged.found == FoundBy::kFault));
      wrong += judged.right ? 0 : 1;
    }
  }
  CHECK(wrong > 20);
}

// A step whose module uses a parameter b [1] beside its shard.
using ShardForward = std::function<at::Tensor(const at::Tensor& h, const at::Tensor& b)>;

struct WithParameterImpl : torch::nn::Module {
  explicit WithParameterImpl(ShardForward f) : body(std::move(f)) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(4, kShardedFeatures)));
    b = register_parameter("b", torch::full({1}, 0.3));
  }
  at::Tensor forward(const at::Tensor& x) { return body(up(x), b); }
  ShardForward body;
  nn::Linear up = nullptr;
  at::Tensor b;
};
MOONSHARD_MODULE(WithParameter);

struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(const ShardForward& body) { block = register_module("block", WithParameter(body)); }
  at::Tensor forward(const at::Tensor& x) { return block(x).pow(2).mean(); }
  WithParameter block = nullptr;
};

struct StepCase {
  const char* name;
  bool terms;   // whether the module's result is declared partial
  bool shared;  // whether b is declared shared, and its gradient summed
  bool right;   // by numbers
  ShardForward body;
  bool unproven = false;
};

Plan PlanOfStep(const StepCase& one) {
  Style block;
  block.name = "block";
  block.params = {{"b", one.shared ? Layout::Shared() : Layout::Replicate()}};
  block.outputs = {Redistribution{one.terms ? Layout::Partial() : Layout::Replicate(), Layout::Replicate()}};
  return PlanOfRules("step", {{"block", block}, {"block.up", ColwiseStyle()}});
}

std::shared_ptr<AroundImpl> StepNet(const StepCase& one) {
  torch::manual_seed(3);
  auto net = std::make_shared<AroundImpl>(one.body);
  net->to(at::kDouble);
  return net;
}

at::Tensor StepInput() {
  torch::manual_seed(4);
  return torch::rand({2, 3, 4}, at::kDouble);
}

// The loss, and the gradients of b and of this rank's weight.
ConstantResults StepNumbersOf(const StepCase& one, const DeviceMesh& mesh) {
  static std::mutex seeds;
  std::shared_ptr<AroundImpl> net;
  at::Tensor x;
  {
    const std::lock_guard lock(seeds);
    net = StepNet(one);
    x = StepInput();
  }
  const auto applied = ParallelizeModule(*net, PlanOfStep(one), mesh);
  const at::Tensor loss = net->forward(x);
  loss.backward();
  const at::Tensor of_b = net->block->b.grad().defined() ? net->block->b.grad() : at::zeros({1}, at::kDouble);
  const at::Tensor& weight = net->block->up->weight;
  return {loss.detach(), of_b, weight.grad().defined() ? weight.grad() : at::zeros_like(weight)};
}

bool AreRight(const StepCase& one) {
  ConstantResults full;
  std::array<ConstantResults, 2> made;
  RunRanks("tp=1", [&](DeviceMesh& mesh) { full = StepNumbersOf(one, mesh); });
  RunRanks("tp=2", [&](DeviceMesh& mesh) { made[static_cast<size_t>(mesh.rank())] = StepNumbersOf(one, mesh); });
  for (const ConstantResults& own : made) {
    if (!SameValues(own[0], full[0]) || !SameValues(own[1], full[1])) return false;
  }
  return SameValues(at::cat({made[0][2], made[1][2]}, 0), full[2]);
}

TEST_CASE("steps with constants as large as a shard are proven where their numbers are those of one rank") {
  const std::vector<StepCase> cases = {
      {"a mean by a count of ones", true, true, false,
       [](const at::Tensor& h, const at::Tensor& b) {
         return (h * b).sum(-1) / torch::ones(h.sizes(), h.options()).sum(-1);
       }},
      {"a mean by a sum of ones_like", true, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b).sum(-1) / at::ones_like(h).sum(-1); }},
      {"a factor that counts", true, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b).sum(-1) * h.new_ones(h.sizes()).sum(); }},
      {"a factor that is a norm", true, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b).sum(-1) * at::ones_like(h).norm(); }},
      {"a factor that is a maximum", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b).sum(-1) * at::ones_like(h).amax(-1); }},
      {"a count beside a sum", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b).sum(-1) + at::ones_like(h).sum(-1); }},
      {"a product with ones", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) {
         return (h * b).matmul(torch::ones({h.size(-1), 1}, h.options())).squeeze(-1);
       }},
      {"a mask, and zeros that are added", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) {
         const at::Tensor mask = torch::full(h.sizes(), 1.0, h.options()).gt(0);
         return (at::where(mask, h, at::zeros_like(h)) * b + torch::zeros({1}, h.options())).sum(-1);
       }},
      {"a constant of one element", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b * torch::ones({1}, h.options())).sum(-1); }},
      {"noise of ones", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (h * b * at::empty_like(h).fill_(1).div_(0.5)).sum(-1); }},
      {"a parameter added to the shard", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (h + b).sum(-1); }},
      {"a parameter added to the shard, its gradient not summed", true, false, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (h + b).sum(-1); }},
      {"a parameter times ones", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return h.sum(-1) + (at::ones_like(h) * b).sum(-1); }},
      {"a parameter times ones, its gradient not summed", true, false, false,
       [](const at::Tensor& h, const at::Tensor& b) { return h.sum(-1) + (at::ones_like(h) * b).sum(-1); }},
      {"a parameter as long as the shard", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return h.sum(-1) + b.expand(h.sizes()).sum(-1); }},
      {"a parameter as long as the shard, its gradient not summed", true, false, false,
       [](const at::Tensor& h, const at::Tensor& b) { return h.sum(-1) + b.expand(h.sizes()).sum(-1); }},
      {"a mean squared error of a parameter times ones", false, false, true,
       [](const at::Tensor& h, const at::Tensor& b) { return at::mse_loss(at::ones_like(h) * b, at::zeros_like(h)); },
       true},
      {"a mean squared error of a parameter times ones, its gradient summed", false, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return at::mse_loss(at::ones_like(h) * b, at::zeros_like(h)); },
       true},
      {"the mean of a parameter times ones", false, false, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).mean(-1); }, true},
      {"the mean of a parameter times ones, its gradient summed", false, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).mean(-1); }, true},
      {"the mean of all of a parameter times ones", false, false, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).mean(); }, true},
      {"the maximum of a parameter times ones", false, false, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).amax(-1); }, true},
      {"the maximum of a parameter times ones, its gradient summed", false, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).amax(-1); }, true},
      {"one element of a parameter times ones", false, false, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).select(-1, 0); }, true},
      {"one element of a parameter times ones, its gradient summed", false, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).select(-1, 0); }, true},
      {"one row of a parameter times ones, summed over the shard", true, true, true,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).select(1, 0).sum(-1); }},
      {"one row of a parameter times ones, its gradient not summed", true, false, false,
       [](const at::Tensor& h, const at::Tensor& b) { return (at::ones_like(h) * b).select(1, 0).sum(-1); }},
      {"the mean of a shard by the sum of a parameter times ones", true, true, false,
       [](const at::Tensor& h, const at::Tensor& b) { return h.sum(-1) / (at::ones_like(h) * b).sum(-1); }},
      {"a count that every rank takes for its own", false, true, false,
       [](const at::Tensor& h, const at::Tensor& b) {
         return torch::ones(h.sizes(), h.options()).sum(-1) * b + 0 * h.detach().sum();
       }},
  };
  for (const StepCase& one : cases) {
    const bool right = AreRight(one);
    const Proof proof = ProveAtTwoSizes(MeshShape::Parse("tp=2").ValueOrThrow(),
                                        [&](const DeviceMesh& mesh, const TypeOptions& options) {
                                          const auto net = StepNet(one);
                                          const auto applied = ParallelizeModule(*net, PlanOfStep(one), mesh);
                                          TypeScope scope(*applied, options);
                                          try {
                                            const at::Tensor loss = net->forward(StepInput());
                                            scope.Loss(loss);
                                            loss.backward();
                                          } catch (const c10::Error& error) {
                                            scope.Stopped(error.what_without_backtrace());
                                          }
                                          return scope.Finish();
                                        });
    INFO(one.name << "\n" << ToText(proof));
    CHECK(right == one.right);
    CHECK(proof.holds() == (right && !one.unproven));
    CHECK(proof.faults.empty() == (right || one.unproven));
  }
}

}  // namespace
}  // namespace moonshard::test
