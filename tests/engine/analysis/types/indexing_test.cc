// The rules of indexing against numbers: random programs of one indexing operator run on the tensors of two and of
// three ranks, with random layouts of their inputs. What the rules accept, the numbers must confirm. The indices are
// ids, masks, positions of nonzero elements, and what programs compute from these.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/analysis/types/on_ranks.h"

namespace moonshard::test {
namespace {

using IndexList = c10::List<std::optional<at::Tensor>>;
using Source = std::function<at::Tensor(const Tensors&)>;

at::Tensor Wholes(at::IntArrayRef sizes) { return at::randint(-9, 10, sizes, at::kDouble); }

// The indices of one dim, or of several dims for a mask.
struct IndexSource {
  std::string name;
  Source make;
  int64_t dims = 1;      // that it indexes
  bool by_value = true;  // the number of indices depends on values
};

// Makes random programs. One seed makes one sequence of them.
class Programs {
 public:
  explicit Programs(uint64_t seed) : random_(seed) { at::manual_seed(seed); }

  Operation Next(const std::string& kind) {
    out_ = Operation{};
    out_.name = kind;
    if (kind == "index") {
      Index();
    } else if (kind == "index_put" || kind == "index_put to add") {
      IndexPut(kind != "index_put");
    } else if (kind == "index_select") {
      IndexSelect();
    } else if (kind == "index_add" || kind == "index_copy") {
      AlongDim(kind == "index_add");
    } else if (kind == "gather" || kind == "take_along_dim") {
      Gather(kind == "gather");
    } else if (kind == "scatter" || kind == "scatter_add") {
      Scatter(kind == "scatter_add");
    } else {
      Embedding();
    }
    return out_;
  }

 private:
  int64_t Pick(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  template <class T>
  T OneOf(const std::vector<T>& all) {
    return all[static_cast<size_t>(Pick(static_cast<int64_t>(all.size())))];
  }
  Source Input(const at::Tensor& full) {
    const size_t i = out_.inputs.size();
    out_.inputs.push_back(full);
    return [i](const Tensors& t) { return t[i]; };
  }
  void Say(const std::string& text) { out_.name += " " + text; }

  std::vector<int64_t> Sizes(int64_t dims) {
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < dims; ++d)
      sizes.push_back(d == 0 ? OneOf<int64_t>({12, 12, 6, 7}) : OneOf<int64_t>({6, 12, 2}));
    if (dims > 1 && Pick(2) == 0) std::swap(sizes[0], sizes[1]);
    return sizes;
  }

  static at::Tensor Ids(at::IntArrayRef sizes, int64_t below) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    if (count > below) return at::randint(below, sizes, at::kLong);
    return at::randperm(below, at::kLong).slice(0, 0, count).reshape(sizes).clone();
  }
  static at::Tensor Mask(at::IntArrayRef sizes) { return at::rand(sizes).gt(0.4); }

  // Positions of one column of nonzero, taken in the ways that programs take them.
  Source Column(const Source& mask, int64_t column, bool alone) {
    const int64_t way = Pick(alone ? 5 : 2);
    return [mask, column, way](const Tensors& t) {
      const at::Tensor places = mask(t).nonzero();
      switch (way) {
        case 0: return places.select(1, column);
        case 1: return places.unbind(1)[static_cast<size_t>(column)];
        case 2: return places.squeeze(1);
        case 3: return places.view({-1});
        default: return places.flatten();
      }
    };
  }

  // Indices of dim `d` of a tensor of these sizes.
  IndexSource Indices(const Source& x, const std::vector<int64_t>& sizes, int64_t d, bool masks, bool flat) {
    const int64_t n = sizes[static_cast<size_t>(d)];
    IndexSource made;
    const int64_t kind = Pick(masks ? 14 : 11);
    switch (kind) {
      case 0:
      case 1: {
        const at::Tensor ids = flat ? Ids({OneOf<int64_t>({n, 6, 12})}, n)
                                    : Ids(OneOf<std::vector<int64_t>>({{n}, {6}, {2, 6}, {6, 2}, {}}), n);
        return {"ids", Input(ids), 1, false};
      }
      case 2: return {"nonzero", Column(Input(Mask({n})), 0, true)};
      case 3: {
        const int64_t column = Pick(2);
        const int64_t k = OneOf<int64_t>({2, 6});
        made.name = "column " + std::to_string(column) + " of nonzero";
        made.make = Column(Input(column == 0 ? Mask({n, k}) : Mask({k, n})), column, false);
        return made;
      }
      case 4: {
        const int64_t m = OneOf<int64_t>({6, 12});
        const Source ids = Input(Ids({m}, n));
        const Source mask = Input(Mask({m}));
        return {"ids[mask]", [=](const Tensors& t) { return at::index(ids(t), IndexList({mask(t)})); }};
      }
      case 5: {
        const Source places = Column(Input(Mask({n})), 0, true);
        return {"(nonzero + 1) % n", [=](const Tensors& t) { return (places(t) + 1).remainder(n); }};
      }
      case 6: {
        const Source y = Input(Wholes({n}));
        const Source mask = Input(Mask({n}));
        return {"nonzero(y[mask])",
                [=](const Tensors& t) { return at::index(y(t), IndexList({mask(t)})).gt(0).nonzero().select(1, 0); }};
      }
      case 7: {
        const Source places = Column(Input(Mask({n})), 0, true);
        const Source w = Input(Wholes({n}));
        return {"places[w[places] > 0]", [=](const Tensors& t) {
                  const at::Tensor at = places(t);
                  return at::index(at, IndexList({at::index(w(t), IndexList({at})).gt(0)}));
                }};
      }
      case 8: {
        const Source places = Column(Input(Mask({6})), 0, true);
        const Source ids = Input(Ids({6}, n));
        return {"ids[nonzero]", [=](const Tensors& t) { return at::index(ids(t), IndexList({places(t)})); }};
      }
      case 9: return {"nonzero of fewer", Column(Input(Mask({std::min<int64_t>(n, 6)})), 0, true)};
      case 10: {
        if (n < 3) return {"ids", Input(Ids({n}, n)), 1, false};
        return {"arange", [=](const Tensors& t) { return at::arange(x(t).size(d)); }, 1, false};
      }
      default: {
        const bool wide = kind == 13 && d + 1 < static_cast<int64_t>(sizes.size());
        if (!wide) return {"mask", Input(Mask({n}))};
        return {"wide mask", Input(Mask({n, sizes[static_cast<size_t>(d) + 1]})), 2};
      }
    }
  }

  using List = std::function<IndexList(const Tensors&)>;
  // A list of one or two indices of x.
  List Indexed(const Source& x, const std::vector<int64_t>& sizes, bool& by_value) {
    const auto dims = static_cast<int64_t>(sizes.size());
    const int64_t first = Pick(dims);
    const IndexSource one = Indices(x, sizes, first, true, false);
    by_value = one.by_value;
    Say("[" + std::to_string(first) + ": " + one.name);
    std::vector<std::pair<size_t, Source>> all = {{static_cast<size_t>(first), one.make}};
    const int64_t rest = dims - first - one.dims;
    if (rest > 0 && Pick(3) == 0) {
      const int64_t skipped = Pick(rest);
      const int64_t d = first + one.dims + skipped;
      const int64_t n = sizes[static_cast<size_t>(d)];
      const Source make = one.make;
      Source other;
      std::string name;
      switch (Pick(4)) {
        case 0:
          name = "0";
          other = Input(at::zeros({}, at::kLong));
          break;
        case 1:
          name = "first % n";
          other = [make, n](const Tensors& t) {
            const at::Tensor at = make(t);
            return (at.scalar_type() == at::kBool ? at.nonzero().select(1, 0) : at).remainder(n);
          };
          break;
        case 2: {
          name = "ids[first]";
          const Source ids = Input(Ids({sizes[static_cast<size_t>(first)]}, n));
          other = [make, ids](const Tensors& t) { return at::index(ids(t), IndexList({make(t)})); };
          break;
        }
        default: {
          const IndexSource two = Indices(x, sizes, d, true, false);
          name = two.name;
          other = two.make;
          by_value = by_value || two.by_value;
        }
      }
      Say(", " + std::to_string(d) + ": " + name);
      all.emplace_back(static_cast<size_t>(first + 1 + skipped), other);
    }
    Say("]");
    return [all](const Tensors& t) {
      std::vector<std::optional<at::Tensor>> list(all.back().first + 1);
      for (const auto& [at, make] : all) list[at] = make(t);
      return IndexList(list);
    };
  }

  // What a program makes of elements that it took.
  std::function<at::Tensor(const at::Tensor&)> Behind() {
    switch (Pick(6)) {
      case 0: Say("sum"); return [](const at::Tensor& y) { return y.dim() > 0 ? y.sum(0) : y; };
      case 1: Say("mean"); return [](const at::Tensor& y) { return y.dim() > 0 ? y.mean(0) : y; };
      case 2: Say("* 2"); return [](const at::Tensor& y) { return y * 2; };
      default: return [](const at::Tensor& y) { return y; };
    }
  }

  void Index() {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    bool by_value = false;
    const List list = Indexed(x, sizes, by_value);
    const int64_t kind = Pick(5);
    Source other;
    List others;
    if (kind < 2) {
      Say("+ y");
      other = Input(Wholes(sizes));
      others = kind == 0 ? list : Indexed(other, sizes, by_value);
    }
    const auto behind = Behind();
    out_.body = [=](const Tensors& t) -> Tensors {
      at::Tensor y = at::index(x(t), list(t));
      if (others) y = y + at::index(other(t), others(t));
      return {behind(y)};
    };
  }

  // What is written into: an input, or a constant with the local sizes of one.
  Source Target(const Source& x) {
    switch (Pick(5)) {
      case 0: Say("into zeros like"); return [=](const Tensors& t) { return at::zeros_like(x(t)); };
      case 1: Say("into new zeros"); return [=](const Tensors& t) { return x(t).new_zeros(x(t).sizes()); };
      case 2: Say("into -1"); return [=](const Tensors& t) { return at::full_like(x(t), -1); };
      default: return x;
    }
  }

  // Values for elements that `taken` has in the full program.
  Source Values(const at::Tensor& full, bool by_value, const Source& ones, const Source& of_others) {
    switch (Pick(by_value ? 5 : 7)) {
      case 0: Say("= scalar"); return Input(Wholes({}));
      case 1: Say("= ones"); return ones;
      case 2:
      case 3: Say("= y[same]"); return of_others;
      case 4: {
        if (full.dim() < 2) return ones;
        Say("= row");
        return Input(Wholes(full.sizes().slice(1)));
      }
      case 5: {
        std::vector<int64_t> sizes = full.sizes().vec();
        if (!sizes.empty()) sizes[static_cast<size_t>(Pick(full.dim()))] = 1;
        Say("= broadcast");
        return Input(Wholes(sizes));
      }
      default: Say("= values"); return Input(Wholes(full.sizes()));
    }
  }

  void IndexPut(bool adds) {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    bool by_value = false;
    const List list = Indexed(x, sizes, by_value);
    const Source y = Input(Wholes(sizes));
    bool other_by_value = false;
    const List others = Pick(4) == 0 ? Indexed(y, sizes, other_by_value) : list;
    const Source into = Target(x);
    const at::Tensor full = at::index(x(out_.inputs), list(out_.inputs));
    const Source values = Values(
        full, by_value, [=](const Tensors& t) { return at::ones(at::index(x(t), list(t)).sizes(), at::kDouble); },
        [=](const Tensors& t) { return at::index(y(t), others(t)) * 2; });
    out_.body = [=](const Tensors& t) -> Tensors { return {at::index_put(into(t), list(t), values(t), adds)}; };
  }

  void IndexSelect() {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    const int64_t d = Pick(static_cast<int64_t>(sizes.size()));
    const IndexSource at = Indices(x, sizes, d, false, true);
    Say(std::to_string(d) + ": " + at.name);
    const auto behind = Behind();
    out_.body = [=](const Tensors& t) -> Tensors { return {behind(x(t).index_select(d, at.make(t)))}; };
  }

  void AlongDim(bool adds) {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    const int64_t d = Pick(static_cast<int64_t>(sizes.size()));
    const IndexSource at = Indices(x, sizes, d, false, true);
    Say(std::to_string(d) + ": " + at.name);
    const Source into = Target(x);
    const at::Tensor full = x(out_.inputs).index_select(d, at.make(out_.inputs));
    const Source y = Input(Wholes(sizes));
    Source values;
    switch (Pick(at.by_value ? 2 : 3)) {
      case 0:
        Say("of ones");
        values = [=](const Tensors& t) {
          std::vector<int64_t> own = x(t).sizes().vec();
          own[static_cast<size_t>(d)] = at.make(t).size(0);
          return at::ones(own, at::kDouble);
        };
        break;
      case 1:
        Say("of y[same]");
        values = [=](const Tensors& t) { return y(t).index_select(d, at.make(t)) * 2; };
        break;
      default: values = Input(Wholes(full.sizes()));
    }
    out_.body = [=](const Tensors& t) -> Tensors {
      return {adds ? into(t).index_add(d, at.make(t), values(t)) : into(t).index_copy(d, at.make(t), values(t))};
    };
  }

  // Indices of the sizes of x, but for dim `d`, and shorter dims.
  Source PointIndices(const Source& x, const std::vector<int64_t>& sizes, int64_t d, bool* expanded = nullptr) {
    const int64_t n = sizes[static_cast<size_t>(d)];
    std::vector<int64_t> own = sizes;
    if (Pick(3) == 0) {
      own = std::vector<int64_t>(sizes.size(), 1);
      own[static_cast<size_t>(d)] = n;
      const Source ids = Input(at::randperm(n, at::kLong).view(own));
      Say("expanded");
      if (expanded != nullptr) *expanded = true;
      return [=](const Tensors& t) {
        std::vector<int64_t> local = x(t).sizes().vec();
        local[static_cast<size_t>(d)] = ids(t).size(d);
        return ids(t).expand(local);
      };
    }
    for (int64_t& size : own) size = Pick(4) == 0 ? std::min<int64_t>(size, 6) : size;
    std::vector<int64_t> all = own;
    all[static_cast<size_t>(d)] = n;
    return Input(at::argsort(at::rand(all), d).slice(d, 0, own[static_cast<size_t>(d)]).clone());
  }

  void Gather(bool plain) {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    const int64_t d = Pick(static_cast<int64_t>(sizes.size()));
    Say(std::to_string(d));
    const Source at = PointIndices(x, sizes, d);
    const auto behind = Behind();
    out_.body = [=](const Tensors& t) -> Tensors {
      return {behind(plain ? x(t).gather(d, at(t)) : at::take_along_dim(x(t), at(t), d))};
    };
  }

  void Scatter(bool adds) {
    const std::vector<int64_t> sizes = Sizes(1 + Pick(3));
    const Source x = Input(Wholes(sizes));
    const int64_t d = Pick(static_cast<int64_t>(sizes.size()));
    Say(std::to_string(d));
    bool expanded = false;
    const Source at = PointIndices(x, sizes, d, &expanded);
    const Source into = Target(x);
    const Source y = Input(Wholes(sizes));
    Source values;
    switch (expanded ? 0 : Pick(3)) {
      case 0:
        Say("of ones");
        values = [=](const Tensors& t) { return at::ones(at(t).sizes(), at::kDouble); };
        break;
      case 1:
        Say("of y[same]");
        values = [=](const Tensors& t) { return y(t).gather(d, at(t)); };
        break;
      default: values = Input(Wholes(at(out_.inputs).sizes()));
    }
    out_.body = [=](const Tensors& t) -> Tensors {
      return {adds ? into(t).scatter_add(d, at(t), values(t)) : into(t).scatter(d, at(t), values(t))};
    };
  }

  void Embedding() {
    const std::vector<int64_t> sizes = Sizes(2);
    const Source table = Input(Wholes(sizes));
    const IndexSource at = Indices(table, sizes, 0, false, false);
    Say(at.name);
    out_.body = [=](const Tensors& t) -> Tensors { return {at::embedding(table(t), at.make(t))}; };
  }

  std::mt19937_64 random_;
  Operation out_;
};

struct Count {
  int64_t accepted = 0;
  int64_t refused = 0;
};

// Up to `most` combinations of layouts, all of them where they are fewer.
std::vector<std::vector<Layout>> Combinations(const Operation& operation, int64_t ranks, size_t most,
                                              std::mt19937_64& random) {
  std::vector<std::vector<Layout>> choices;
  size_t count = 1;
  for (const at::Tensor& input : operation.inputs) {
    choices.push_back(LayoutsOfTensor(input, true, false, ranks));
    count *= choices.back().size();
  }
  std::vector<std::vector<Layout>> out;
  for (size_t i = 0; i < std::min(count, most); ++i) {
    size_t at = count <= most ? i : random() % count;
    std::vector<Layout>& layouts = out.emplace_back();
    for (const std::vector<Layout>& of_input : choices) {
      layouts.push_back(of_input[at % of_input.size()]);
      at /= of_input.size();
    }
  }
  return out;
}

std::string Described(const Operation& operation, const std::vector<Layout>& layouts) {
  std::string out = operation.name + "; inputs";
  for (size_t i = 0; i < layouts.size(); ++i) {
    out += " " + layouts[i].ToText();
    for (size_t d = 0; d < operation.inputs[i].sizes().size(); ++d)
      out += (d == 0 ? "[" : ",") + std::to_string(operation.inputs[i].size(static_cast<int64_t>(d)));
    if (operation.inputs[i].dim() > 0) out += "]";
  }
  return out;
}

struct Pattern {
  Operation operation;
  std::vector<Layout> layouts;
  const char* type;  // of the result
};

// What models do, with a result of which the type is known.
std::vector<Pattern> Patterns() {
  const Layout full = Layout::Replicate();
  const auto cut = [](int dim) { return Layout::Shard(dim); };
  const auto put = [](const Tensors& t) -> Tensors { return {at::index_put(t[0], IndexList({t[1]}), t[2])}; };
  const auto add = [](const Tensors& t) -> Tensors {
    return {at::zeros({12, t[1].size(1)}, at::kDouble).index_add(0, t[0], t[1])};
  };
  const auto look_up = [](const Tensors& t) -> Tensors { return {at::index(t[0], IndexList({t[1]}))}; };
  const at::Tensor ids = at::randperm(12, at::kLong).slice(0, 0, 6).clone();
  const at::Tensor mask = at::rand({12}).gt(0.4);
  const at::Tensor wide = at::rand({2, 12}).gt(0.4);
  return {
      {{"keys written into a cache",
        {Wholes({2, 6, 12, 4}), ids, Wholes({2, 6, 6, 4})},
        [](const Tensors& t) -> Tensors {
          return {at::index_put(t[0], IndexList({std::nullopt, std::nullopt, t[1]}), t[2])};
        }},
       {cut(1), full, cut(1)},
       "shard(1)"},
      {{"keys copied into a cache",
        {Wholes({2, 6, 12, 4}), ids, Wholes({2, 6, 6, 4})},
        [](const Tensors& t) -> Tensors { return {t[0].index_copy(2, t[1], t[2])}; }},
       {cut(1), full, cut(1)},
       "shard(1)"},
      {{"an embedding of masked tokens", {Wholes({2, 12, 6}), wide, Wholes({6})}, put}, {full, full, full}, "shared"},
      {{"an embedding of masked tokens", {Wholes({2, 12, 6}), wide, Wholes({6})}, put},
       {cut(1), cut(1), full},
       "shard(1)"},
      {{"an embedding of masked tokens", {Wholes({2, 12, 6}), wide, Wholes({6})}, put},
       {cut(2), full, cut(0)},
       "shard(2)"},
      {{"an embedding of masked tokens", {Wholes({12, 6}), mask, Wholes({6})}, put},
       {cut(0), cut(0), full},
       "shard(0)"},
      {{"a masked token set to a number", {Wholes({12, 6}), mask, Wholes({})}, put},
       {cut(0), cut(0), full},
       "shard(0)"},
      {{"masked tokens", {Wholes({2, 12, 6}), wide}, look_up}, {cut(2), full}, "shard(1)"},
      {{"logits of labels",
        {Wholes({12, 6}), at::randint(6, {12, 1}, at::kLong)},
        [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; }},
       {cut(0), cut(0)},
       "shard(0)"},
      {{"logits of labels",
        {Wholes({12, 6}), at::randint(6, {12, 1}, at::kLong)},
        [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; }},
       {full, full},
       "shared"},
      {{"outputs of an expert added", {ids, Wholes({6, 6})}, add}, {full, full}, "shared"},
      {{"outputs of an expert added", {ids, Wholes({6, 6})}, add}, {full, cut(1)}, "shard(1)"},
      {{"outputs of an expert added", {ids, Wholes({6, 6})}, add}, {full, Layout::Partial()}, "partial"},
      {{"the tokens of an expert, in shards",
        {Wholes({12, 6}), mask},
        [](const Tensors& t) -> Tensors {
          const at::Tensor places = t[1].nonzero().squeeze(1);
          return {at::zeros_like(t[0]).index_add(0, places, t[0].index_select(0, places) * 2)};
        }},
       {cut(0), cut(0)},
       "shard(0)"},
      {{"the tokens of an expert, chosen among several",
        {Wholes({12, 6}), Wholes({12, 2}), wide},
        [](const Tensors& t) -> Tensors {
          const std::vector<at::Tensor> places = t[2].nonzero().unbind(1);
          const at::Tensor weights = at::index(t[1], IndexList({places[1], places[0]}));
          const at::Tensor tokens = at::index(t[0], IndexList({places[1]})) * weights.unsqueeze(1);
          return {at::zeros(t[0].sizes(), at::kDouble).index_add_(0, places[1], tokens)};
        }},
       {cut(0), cut(0), cut(1)},
       "shard(0)"},
      {{"cosines of positions", {Wholes({12, 4}), at::randint(12, {2, 6}, at::kLong)}, look_up},
       {full, full},
       "shared"},
      {{"cosines of positions", {Wholes({12, 4}), at::randint(12, {2, 6}, at::kLong)}, look_up},
       {full, cut(1)},
       "shard(1)"},
      {{"rows of a table", {Wholes({12, 6}), ids}, look_up}, {full, cut(0)}, "shard(0)"},
      {{"rows of a table", {Wholes({12, 6}), ids}, look_up}, {cut(1), full}, "shard(1)"},
  };
}

TEST_CASE("the indexing of models is accepted") {
  at::manual_seed(3);
  for (const Pattern& pattern : Patterns()) {
    for (const int64_t ranks : {2, 3}) {
      INFO(Described(pattern.operation, pattern.layouts) << " on " << ranks << " ranks");
      std::string why;
      const std::vector<RankRun> runs = RunOnAll(pattern.operation, pattern.layouts, ranks, &why);
      CHECK(why == "");
      if (runs.empty()) continue;
      CHECK(runs.front().types[0].ToString() == pattern.type);
      CHECK(IsAsTyped(runs, 0, pattern.operation.body(pattern.operation.inputs)[0]));
    }
  }
}

TEST_CASE("a slice to a given end of chosen rows is unproven, and to their end accepted") {
  for (const bool to_the_end : {false, true}) {
    const Operation capacity = {
        "a capacity of tokens", {Wholes({12, 6}), at::rand({12}).gt(0.4)}, [to_the_end](const Tensors& t) -> Tensors {
          const at::Tensor chosen = at::index(t[0], IndexList({t[1]}));
          return {to_the_end ? chosen.slice(0, 0) : chosen.slice(0, 0, 12)};
        }};
    std::string why;
    const std::vector<RankRun> runs = RunOnAll(capacity, {Layout::Shard(0), Layout::Shard(0)}, 2, &why);
    CHECK(runs.empty() != to_the_end);
    if (!to_the_end) CHECK_THAT(why, Catch::Contains("a slice with given bounds of dim 0"));
  }
}

TEST_CASE("indexing computes what its types say") {
  constexpr int kPrograms = 60;    // of each operator
  constexpr size_t kLayouts = 16;  // of each program
  std::map<std::string, Count> counts;
  std::map<std::string, int> refuted;
  std::string examples;
  std::mt19937_64 random(23);
  for (const char* kind : {"index", "index_put", "index_put to add", "index_select", "index_add", "index_copy",
                           "gather", "take_along_dim", "scatter", "scatter_add", "embedding"}) {
    Programs programs(11);
    for (int i = 0; i < kPrograms; ++i) {
      Operation program;
      Tensors full;
      try {
        program = programs.Next(kind);
        full = program.body(program.inputs);
      } catch (const std::exception&) {
        continue;  // indices of lengths that do not fit together
      }
      for (const int64_t ranks : {2, 3}) {
        for (const std::vector<Layout>& layouts : Combinations(program, ranks, kLayouts, random)) {
          const std::vector<RankRun> runs = RunOnAll(program, layouts, ranks);
          Count& count = counts[kind];
          ++(runs.empty() ? count.refused : count.accepted);
          if (runs.empty() || IsAsTyped(runs, 0, full[0])) continue;
          if (++refuted[kind] <= 8)
            examples += Described(program, layouts) + ": is not " + runs.front().types[0].ToString() + " on " +
                        std::to_string(ranks) + " ranks\n";
        }
      }
    }
  }
  for (const auto& [kind, count] : counts) {
    INFO(kind << ": " << count.accepted << " accepted, " << refuted[kind] << " of them wrong, " << count.refused
              << " refused");
    CHECK(count.accepted > 50);
  }
  CHECK(examples == "");
}

}  // namespace
}  // namespace moonshard::test
