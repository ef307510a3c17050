// Lookups in tables that are sharded by rows, bags, and convolutions in groups.
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/nn/embedding_bag.h"
#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {
namespace {

using at::Tensor;

constexpr int64_t kTableRows = 6;

// How a lookup in the rows of this rank treats ids of other rows.
enum class OtherRows { kMasked, kKept, kMaskedTheWrongWay, kMaskedAndScaled };

Tensor LookUp(const Tensor& table, const Tensor& of, OtherRows other) {
  const Tensor ids = torch::tensor({0, 4, 2, 3, 1, 3}).view({2, 3});
  if (table.size(0) == kTableRows) return at::embedding(of, ids).sum(-1);
  // The first value of the table is the rank's.
  const int64_t first = table.const_data_ptr<double>()[0] < -0.8 ? 0 : 3;
  const Tensor shifted = ids - first;
  NoteOwnRows(shifted, table);
  const Tensor elsewhere = shifted.lt(0).logical_or(shifted.ge(table.size(0)));
  if (other == OtherRows::kKept) return at::embedding(of, shifted.clamp(0, 2)).sum(-1);
  Tensor rows = at::embedding(of, shifted.masked_fill(elsewhere, 0));
  if (other == OtherRows::kMaskedAndScaled) rows = rows * 1.7;
  const bool wrong_way = other == OtherRows::kMaskedTheWrongWay;
  return rows.masked_fill((wrong_way ? elsewhere.logical_not() : elsewhere).unsqueeze(-1), 0).sum(-1);
}

void AddLookups(Forwards& out) {
  const Build build = [](BlockImpl& m) {
    m.AddParameter("table", torch::linspace(-1, 1, 24).sin().view({kTableRows, 4}));
    m.AddParameter("other", torch::linspace(-1, 2, 32).sin().view({8, 4}));
  };
  Styles styles = Around({}, kShared, kReplicated);
  styles["block"].params["table"] = Layout::Shard(0);
  styles["block"].params["other"] = Layout::Shard(0);
  const auto add = [&](const char* name, const char* of, OtherRows other) {
    out.push_back({std::string("rows of this rank: ") + name, build, styles, [of, other](BlockImpl& m, const Tensor&) {
                     return LookUp(m.parameter["table"], m.parameter[of], other) * m.b;
                   }});
  };
  add("masked, right", "table", OtherRows::kMasked);
  add("not masked", "table", OtherRows::kKept);
  add("masked the wrong way round", "table", OtherRows::kMaskedTheWrongWay);
  add("of another table", "other", OtherRows::kMasked);
  add("scaled on ranks", "table", OtherRows::kMaskedAndScaled);
  Styles bags = Replicated();
  bags["block"].params["table"] = kReplicated;
  out.push_back({"bags: their mode by the size of a shard",
                 [](BlockImpl& m) {
                   m.AddLinear("up", 4, 8);
                   m.AddParameter("table", torch::linspace(-1, 1, 20).sin().view({5, 4}));
                 },
                 bags,
                 [](BlockImpl& m, const Tensor& x) {
                   const int64_t mode = m.Call("up", x).size(-1) == 8 ? 1 : 0;
                   const Tensor ids = torch::tensor({0, 4, 2, 2, 1, 3});
                   const Tensor begins = torch::tensor({0, 3});
                   return x +
                          std::get<0>(at::embedding_bag(m.parameter["table"], ids, begins, false, mode)).unsqueeze(1);
                 }});
}

void AddConvolutions(Forwards& out) {
  const auto grouped = [&](const char* name, int64_t in, int64_t made) {
    const Build build = [in, made](BlockImpl& m) {
      m.AddLinear("up", 12, in * 2);
      m.AddConv("conv", torch::nn::Conv1dOptions(in, made, 1).groups(4));
    };
    out.push_back({name, build, Around({{"block.up", Columns()}, {"block.conv", OutChannels(Layout::Shard(1))}}),
                   [](BlockImpl& m, const Tensor& x) {
                     const Tensor z = m.Call("up", x.reshape({2, 12})).view({2, -1, 2});
                     return m.conv.at("conv")(z.tanh()).exp().sum({1, 2});
                   }});
  };
  grouped("convolutions: 12 to 8 channels in groups, behind a view, right", 12, 8);
  grouped("convolutions: 8 to 12 channels in groups, behind a view, right", 8, 12);
  const Build transposed = [](BlockImpl& m) {
    m.AddLinear("up", 4, 8);
    m.AddParameter("w", torch::linspace(-1, 1, 32).cos().view({8, 4, 1}));
  };
  Styles styles = Around({{"block.up", Columns()}});
  styles["block"].params["w"] = Layout::Shard(0);
  out.push_back({"convolutions: a transposed one with a group on each rank, right", transposed, styles,
                 [](BlockImpl& m, const Tensor& x) {
                   const Tensor& w = m.parameter["w"];
                   const Tensor z = m.Call("up", x).transpose(1, 2);
                   return at::conv_transpose1d(z, w, {}, 1, 0, 0, w.size(0) / 4).exp().sum({1, 2});
                 }});
}

// A layer that is called on what it has made itself: the engine adds the gradients of each state in another order.
void AddRecurrences(Forwards& out) {
  Style cell = Columns();
  cell.outputs = {Redistribution{Layout::Shard(-1), kReplicated}};
  cell.inputs = {Redistribution{kReplicated, kShared}};
  const auto add = [&](const char* name, bool states) {
    out.push_back({std::string("recurrence: ") + name, Layers({{"cell", 4}}),
                   Around({{"block.cell", cell}}, kReplicated, kReplicated, std::nullopt),
                   [states](BlockImpl& m, const Tensor& x) {
                     Tensor h = x;
                     std::vector<Tensor> all;
                     for (int i = 0; i < 3; ++i) all.push_back(h = at::tanh(m.Call("cell", h) + x));
                     return (states ? at::stack(all).sum(0) : h) * m.b;
                   }});
  };
  add("the last state, right", false);
  add("all states, right", true);
}

}  // namespace

Forwards LayerForwards() {
  Forwards out;
  AddRecurrences(out);
  AddLookups(out);
  AddConvolutions(out);
  return out;
}

}  // namespace moonshard::test::adversarial
