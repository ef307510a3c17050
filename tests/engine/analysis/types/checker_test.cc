// The checker: what it does with writes into memory, with operators that it does not know, and in backwards.
#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {
namespace {

// y, a view of it written into, then what y and another view of it, made before, are.
struct WriteCase {
  const char* what;
  const char* base;
  const char* other;
  std::function<at::Tensor()> make;
  std::function<void(const at::Tensor&)> write;
};

TEST_CASE("what a write through a view makes of the whole, and of other views") {
  const std::vector<WriteCase> cases = {
      {"a number into shards", "shard(0)", "shard(1)",
       [] {
         return OneAxis::Piece(0, {4, 3}) + 1;
       },
       [](const at::Tensor& y) { y.narrow(1, 0, 2).mul_(2); }},
      {"shards side by side into memory that holds nothing yet", "shard(0)", "shard(1)",
       [] {
         return OneAxis::Same({1}).new_empty({4, 3});
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Piece(0, {4, 2}));
         y.narrow(1, 2, 1).copy_(OneAxis::Piece(0, {4, 1}));
       }},
      {"a shard into a part of the dim", "unproven", "unproven",
       [] {
         return OneAxis::Same({1}).new_zeros({4, 3});
       },
       [](const at::Tensor& y) {
         y.narrow(0, 0, 2).copy_(OneAxis::Piece(0, {2, 3}));
       }},
      {"one row of a shard along the features", "shard(1)", "shard(0)",
       [] {
         return OneAxis::Same({1}).new_zeros({4, 3});
       },
       [](const at::Tensor& y) { y.select(0, 1).copy_(OneAxis::Piece(0, {3})); }},
      {"a whole value into shards", "unproven", "unproven",
       [] {
         return OneAxis::Piece(0, {4, 3}) + 1;
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Same({4, 2}));
       }},
      {"a row that is the same along the shards", "shard(0)", "shard(1)",
       [] {
         return OneAxis::Piece(0, {4, 3}) + 1;
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Same({1, 2}).expand({4, 2}));
       }},
      {"terms into zeros", "partial", "partial",
       [] {
         return OneAxis::Same({1}).new_zeros({4, 3});
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Terms({4, 2}));
       }},
      {"terms into ones", "unproven", "unproven",
       [] {
         return OneAxis::Same({1}).new_ones({4, 3});
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Terms({4, 2}));
       }},
      {"a whole value into terms", "unproven", "unproven",
       [] {
         return OneAxis::Terms({4, 3}) * 2;
       },
       [](const at::Tensor& y) {
         y.narrow(1, 0, 2).copy_(OneAxis::Same({4, 2}));
       }},
      {"zeros into terms", "partial", "partial",
       [] {
         return OneAxis::Terms({4, 3}) * 2;
       },
       [](const at::Tensor& y) { y.narrow(1, 0, 2).zero_(); }},
      {"every second element of a whole value", "shared", "shared",
       [] {
         return OneAxis::Same({4, 4}) + 1;
       },
       [](const at::Tensor& y) {
         y.slice(1, 0, 4, 2).copy_(OneAxis::Same({4, 2}));
       }},
      {"every second element of shards", "unproven", "unproven",
       [] {
         return OneAxis::Piece(0, {4, 4}) + 1;
       },
       [](const at::Tensor& y) {
         y.slice(1, 0, 4, 2).copy_(OneAxis::Piece(0, {4, 2}));
       }},
      {"dims joined", "unproven", "unproven",
       [] {
         return OneAxis::Piece(0, {4, 3}) + 1;
       },
       [](const at::Tensor& y) { y.view({12}).mul_(2); }},
  };
  for (const WriteCase& one : cases) {
    INFO(one.what);
    OneAxis axis;
    std::string base;
    {
      const OperatorScope scope(axis.checker);
      const at::Tensor y = one.make();
      const at::Tensor other = y.t();
      one.write(y);
      base = axis.checker.Get(y)[0].ToString();
      const at::Tensor used = other * 1;
      CHECK(axis.checker.Get(used)[0].ToString() == one.other);
    }
    CHECK(base == one.base);
    CHECK(axis.checker.faults().empty());
    CHECK(axis.checker.unproven().empty() == (std::string(one.other) != "unproven"));
  }
}

TEST_CASE("the gradient of what was written into a view") {
  OneAxis one;
  const OperatorScope scope(one.checker);
  const at::Tensor a = OneAxis::Piece(0, {4, 2}).requires_grad_();
  const at::Tensor b = OneAxis::Piece(0, {4, 1}).requires_grad_();
  const at::Tensor y = a.new_empty({4, 3});
  y.narrow(1, 0, 2).copy_(a);
  y.narrow(1, 2, 1).copy_(b);
  const auto gradients = torch::autograd::grad({(y * 3).sum(1)}, {a, b}, {OneAxis::Piece(0, {4})});
  CHECK(one.checker.Get(gradients[0])[0].ToString() == "shard(0)");
  CHECK(one.checker.Get(gradients[1])[0].ToString() == "shard(0)");
  CHECK(one.checker.unproven().empty());
}

// As a GRU cell writes them: each chunk counts its own writes.
TEST_CASE("a chunk that is written with another chunk of its memory keeps its type") {
  OneAxis one;
  CHECK(one.Of([] {
    const std::vector<at::Tensor> chunks = (Same({4, 6}) * 1).unsafe_chunk(3, 1);
    const at::Tensor reset = chunks[0].add_(1).sigmoid_();
    return chunks[2].mul_(reset) * 1;
  }) == "shared");
}

TEST_CASE("a write through a chunk, or through what was split, makes the types of the other void") {
  OneAxis one;
  const OperatorScope scope(one.checker);
  const auto type_of = [&](const at::Tensor& tensor) { return one.checker.Get(tensor)[0].ToString(); };
  const at::Tensor y = Same({4, 6}) * 1;
  const at::Tensor view = y.t();
  const std::vector<at::Tensor> chunks = y.unsafe_chunk(2, 0);
  CHECK(type_of(y) == "shared");
  chunks[0].copy_(Terms({2, 6}));
  CHECK(type_of(chunks[0]) == "partial");
  CHECK(type_of(chunks[0].t()) == "partial");
  CHECK(type_of(chunks[1]) == "shared");
  CHECK(type_of(y) == "unproven");
  CHECK(one.checker.unproven().empty());
  CHECK(type_of(view * 1) == "unproven");
  REQUIRE(one.checker.unproven().size() == 1);
  CHECK(one.checker.unproven().begin()->first.ends_with("reads a tensor whose layout is not known"));
  const at::Tensor z = Same({4, 6}) * 1;
  const std::vector<at::Tensor> of_z = z.unsafe_chunk(2, 0);
  z.copy_(Terms({4, 6}));
  CHECK(type_of(z) == "partial");
  CHECK(type_of(of_z[0]) == "unproven");
}

// Equal elements that are as long as a shard are that shard, for a rule that does not follow equal elements.
TEST_CASE("the gradients of an operator from a gradient of equal elements") {
  const auto gradients = [](const at::Tensor& gradient) {
    OneAxis one;
    const at::Tensor x = OneAxis::Same({2, 3, 5}).requires_grad_();
    const at::Tensor w = at::rand({4, 3, 1}).requires_grad_();
    one.checker.SetLeaf(w, TensorType(1, TypeOfLayout(Layout::Shard(0), w.sizes(), -1, 2, 0)));
    const OperatorScope scope(one.checker);
    const auto made = torch::autograd::grad({at::conv1d(x, w)}, {x, w}, {gradient});
    if (!one.checker.faults().empty()) return "fault: " + one.checker.faults().front().message;
    return one.checker.Get(made[0])[0].ToString() + ", " + one.checker.Get(made[1])[0].ToString();
  };
  const auto equal = [](uint64_t dims, uint64_t local) {
    AxisType type = AxisType::Replicate();
    type.uniform = dims;
    type.local = local;
    return OneAxis::As(at::ones({2, 4, 5}), type);
  };
  CHECK(gradients(OneAxis::Piece(1, {2, 4, 5})) == "partial, shard(0)");
  CHECK(gradients(equal(2, 2)) == "partial, shard(0)");
  CHECK(gradients(equal(7, 2)) == "partial, shard(0)");
  // As many elements on every number of ranks, as long as another dim of a shard, and others.
  for (const at::Tensor& other : {equal(7, 0), equal(7, 1), equal(7, 4), equal(0, 0)}) {
    CHECK(gradients(other).starts_with("fault: the gradient and the weight are not sharded in the same way"));
  }
}

TEST_CASE("an operator without a rule is unproven by name, unless all is the same on every rank") {
  OneAxis one;
  {
    const OperatorScope scope(one.checker);
    at::fft_fft(OneAxis::Same({4}));
    CHECK(one.checker.unproven().empty());
    at::fft_fft(OneAxis::Piece(0, {4}));
  }
  REQUIRE(one.checker.unproven().size() == 1);
  CHECK(one.checker.unproven().begin()->first.find("no rule") != std::string::npos);
}

TEST_CASE("what follows from a fault is not blamed") {
  OneAxis one;
  const OperatorScope scope(one.checker);
  const at::Tensor bad = OneAxis::Terms({3}).exp();
  (void)(bad + OneAxis::Piece(0, {3})).exp();
  CHECK(one.checker.faults().size() == 1);
}

TEST_CASE("gradients have the types that duality says, and a whole value beside shards is found in the forward") {
  SECTION("shared") {
    OneAxis one;
    const at::Tensor x = at::rand({2, 3}).requires_grad_();
    const at::Tensor w = at::rand({4, 3}).requires_grad_();
    one.checker.SetLeaf(x, TensorType(1, AxisType::Shared()));
    one.checker.SetLeaf(w, TensorType(1, AxisType::Shard(0, 4)));
    {
      const OperatorScope scope(one.checker);
      const at::Tensor y = at::linear(x, w);
      torch::autograd::backward({y}, {OneAxis::Piece(1, {2, 4})});
    }
    CHECK(one.checker.faults().empty());
    CHECK(one.checker.Get(x.grad())[0].ToString() == "partial");
    CHECK(one.checker.Get(w.grad())[0].ToString() == "shard(0)");
  }
  SECTION("whole") {
    OneAxis one;
    const at::Tensor x = at::rand({2, 3}).requires_grad_();
    const at::Tensor w = at::rand({4, 3}).requires_grad_();
    one.checker.SetLeaf(x, TensorType(1, AxisType::Full()));
    one.checker.SetLeaf(w, TensorType(1, AxisType::Shard(0, 4)));
    const OperatorScope scope(one.checker);
    (void)at::linear(x, w);
    REQUIRE(one.checker.faults().size() == 1);
    CHECK(one.checker.faults().front().message.find("declare the replicated tensor shared") != std::string::npos);
    CHECK(one.checker.faults().front().suggested_fix == SuggestedFix::kShare);
  }
}

TEST_CASE("a fault has the suggested fix of the rule that found it, whatever its words are") {
  const auto suggested_fix_of = [](const std::function<void()>& body) {
    OneAxis one;
    const OperatorScope scope(one.checker);
    body();
    REQUIRE(one.checker.faults().size() == 1);
    return one.checker.faults().front().suggested_fix;
  };
  CHECK(suggested_fix_of([] { Terms({3}).exp(); }) == SuggestedFix::kMakeSum);
  CHECK(suggested_fix_of([] { at::mm(Terms({2, 3}), Terms({3, 2})); }) == SuggestedFix::kMakeSum);
  CHECK(suggested_fix_of([] {
          at::addmm(Same({2}), Piece(1, {2, 3}), Piece(0, {3, 2}));
        }) == SuggestedFix::kAddBiasAfter);
  CHECK(suggested_fix_of([] { (void)(Same({3}) + Piece(0, {3})); }) == SuggestedFix::kTakeShard);
  CHECK(suggested_fix_of([] { Piece(0, {3}).amax(); }) == SuggestedFix::kUnknown);
  CHECK(suggested_fix_of([] { (void)(Piece(0, {3, 3}) + Piece(1, {3, 3})); }) == SuggestedFix::kUnknown);
}

TEST_CASE("several axes are judged each by itself") {
  OperatorChecker checker({{MeshAxis::kDpShard, 2, 0}, {MeshAxis::kTp, 2, 0}}, RuleTable::BuiltIn());
  const at::Tensor x = at::rand({2, 3});
  const at::Tensor w = at::rand({3, 4});
  SetType(x, {AxisType::Shard(0, 2), TypeOfLayout(Layout::Shard(1), x.sizes(), 6, 2, 0)});
  SetType(w, {AxisType::Replicate(), TypeOfLayout(Layout::Shard(0), w.sizes(), 6, 2, 0)});
  const OperatorScope scope(checker);
  const TensorType y = checker.Get(at::mm(x, w));
  CHECK(y[0].ToString() == "shard(0)");
  CHECK(y[1].ToString() == "partial");
}

TEST_CASE("a region is taken at its word") {
  OneAxis one;
  const OperatorScope scope(one.checker);
  const at::Tensor x = OneAxis::Terms({3});
  at::Tensor y;
  {
    Region region("my sum", "here", MeshAxis::kTp);
    region.DeclareInput(x, Layout::Partial());
    y = x.exp();
    region.DeclareOutput(y, Layout::Replicate());
  }
  CHECK(one.checker.faults().empty());
  CHECK(one.checker.Get(y)[0].ToString() == "replicate");
  {
    Region region("my sum", "here", MeshAxis::kTp);
    region.DeclareInput(y, Layout::Partial());
  }
  REQUIRE(one.checker.faults().size() == 1);
  CHECK(one.checker.faults().front().got == "replicate");
}

TEST_CASE("a declared full size tells whether shards differ in length") {
  const auto uneven = [](const Layout& layout, int64_t local, int64_t full_size, int64_t rank) {
    return TypeOfLayout(layout, {local, 5}, full_size, 2, rank).uneven;
  };
  CHECK(uneven(Layout::Shard(0), 4, 7, 0));
  CHECK(uneven(Layout::Shard(0), 3, 7, 1));
  CHECK(uneven(Layout::Shard(0), 1, 1, 0));
  CHECK_FALSE(uneven(Layout::Shard(0), 4, 8, 0));
  CHECK_FALSE(uneven(Layout::Shard(0), 4, -1, 0));
  Layout packed = Layout::Shard(0);
  packed.parts = {{3, 0}, {4, 0}};
  CHECK(uneven(packed, 4, 7, 0));
  CHECK(uneven(packed, 4, -1, 0));
  packed.parts = {{2, 0}, {4, 0}};
  CHECK_FALSE(uneven(packed, 3, 6, 0));
}

// 7 rows on two ranks are 4 and 3. The checker sees rank 0 alone.
TEST_CASE("a mean over what a region scattered is a fault if the ranks do not divide its size") {
  for (const int64_t rows : {7, 8}) {
    OneAxis one;
    const OperatorScope scope(one.checker);
    const at::Tensor x = OneAxis::Same({2, rows});
    at::Tensor y;
    {
      Region region("scatter", "here", MeshAxis::kTp);
      region.DeclareInput(x, Layout::Replicate());
      y = x.narrow(1, 0, 4).clone();
      region.DeclareOutput(y, Layout::Shard(-1));
    }
    const at::Tensor mean = y.exp().mean(1);
    INFO(rows);
    CHECK(one.checker.faults().empty() == (rows == 8));
    CHECK(one.checker.Get(mean)[0].ToString() == (rows == 8 ? "partial mean" : "faulty"));
  }
}

TEST_CASE("a boundary's full size is learned where the shard is known already") {
  OneAxis one;
  const OperatorScope scope(one.checker);
  const at::Tensor x = OneAxis::As(at::rand({2, 4}), AxisType::Shard(1, 4));
  one.checker.Anchor(x, MeshAxis::kTp, Layout::Shard(-1), 7, "output 0");
  CHECK(one.checker.faults().empty());
  CHECK(one.checker.unproven().begin()->first ==
        "output 0 is declared shard(-1), but it is not known which elements each rank holds");
  x.mean(1);
  REQUIRE(one.checker.faults().size() == 1);
  CHECK(one.checker.faults().front().message.starts_with("'mean' over uneven shards"));
}

// A group of two without a peer: what goes in comes out.
class Alone final : public c10d::Backend {
 public:
  Alone() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "alone"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor&, at::Tensor&,
                                                      const c10d::ReduceScatterOptions&) override {
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<Done>();
  }

 private:
  class Done final : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds) override { return true; }
    bool isCompleted() override { return true; }
  };
};

TEST_CASE("collectives that a program calls itself") {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Alone>());
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  const auto sum = [&](const at::Tensor& x) {
    std::vector<at::Tensor> tensors{x};
    group->allreduce(tensors)->wait();
    return x;
  };
  SECTION("a sum of terms") {
    OneAxis one;
    one.checker.SetGroup(group.get(), MeshAxis::kTp);
    CHECK(one.Of([&] { return sum(OneAxis::Terms({2})); }) == "shared");
  }
  SECTION("a sum of what is whole") {
    OneAxis one;
    one.checker.SetGroup(group.get(), MeshAxis::kTp);
    CHECK(one.Of([&] { return sum(OneAxis::Same({2})); }).starts_with("fault: an all-reduce of a replicated tensor"));
  }
  SECTION("a gather along another dim") {
    OneAxis one;
    one.checker.SetGroup(group.get(), MeshAxis::kTp);
    CHECK(one.Of([&] {
               at::Tensor in = OneAxis::Piece(1, {2, 3});
               at::Tensor out = at::empty({4, 3});
               group->_allgather_base(out, in)->wait();
               return out;
             })
              .starts_with("fault: an all-gather concatenates along dim 0"));
  }
  SECTION("over a group that nobody knows") {
    OneAxis one;
    CHECK(one.Of([&] { return sum(OneAxis::Terms({2})); }).starts_with("unproven: c10d::allreduce_"));
  }
}

struct ReducedCase {
  const char* what;
  c10d::ReduceOp::RedOpType by;
  const char* expected;
  std::function<at::Tensor()> make;
};

// An all-reduce is right or wrong by its operator.
TEST_CASE("the operator of an all-reduce that a program calls itself") {
  using c10d::ReduceOp;
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Alone>());
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  const auto terms = [] { return OneAxis::Terms({2}); };
  const auto means = [] { return OneAxis::As(at::rand({2}), AxisType::Partial(/*mean=*/true)); };
  const auto same = [] { return OneAxis::Same({2}); };
  const auto own = [] { return OneAxis::As(at::rand({2}), AxisType::Of(TypeKind::kVarying)); };
  const std::vector<ReducedCase> cases = {
      {"an average of terms", ReduceOp::AVG, "fault: an all-reduce averages a partial tensor", terms},
      {"the maximum of terms", ReduceOp::MAX, "fault: an all-reduce of a partial tensor with an operator", terms},
      {"an average of means", ReduceOp::AVG, "shared", means},
      {"a sum of means", ReduceOp::SUM, "fault: an all-reduce sums a partial mean", means},
      {"an average of what is whole", ReduceOp::AVG, "shared", same},
      {"the minimum of what is whole", ReduceOp::MIN, "shared", same},
      {"a product of what is whole", ReduceOp::PRODUCT, "fault: an all-reduce combines the equal values", same},
      {"the maximum of each rank's own", ReduceOp::MAX, "shared", own},
      {"the maximum of shards", ReduceOp::MAX, "fault: an all-reduce combines shards",
       [] { return OneAxis::Piece(0, {2}); }},
  };
  for (const ReducedCase& one : cases) {
    INFO(one.what);
    OneAxis axis;
    axis.checker.SetGroup(group.get(), MeshAxis::kTp);
    const std::string got = axis.Of([&] {
      std::vector<at::Tensor> tensors{one.make()};
      c10d::AllreduceOptions options;
      options.reduceOp = one.by;
      group->allreduce(tensors, options)->wait();
      return tensors.front();
    });
    CHECK(got.substr(0, std::string(one.expected).size()) == one.expected);
  }
}

TEST_CASE("other collectives that a program calls itself") {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Alone>());
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  const auto type_of = [&](const std::function<at::Tensor()>& body) {
    OneAxis one;
    one.checker.SetGroup(group.get(), MeshAxis::kTp);
    return one.Of(body);
  };
  const auto gather = [&](at::Tensor in) {
    at::Tensor out = at::empty({2 * in.size(0)});
    group->_allgather_base(out, in)->wait();
    return out;
  };
  CHECK(type_of([&] { return gather(OneAxis::Piece(0, {4})); }) == "shared");
  CHECK(type_of([&] {
          return gather(OneAxis::As(at::rand({4}), TypeOfLayout(Layout::PackedEqually(0, 2), {4}, 8, 2, 0)));
        }).starts_with("fault: an all-gather concatenates the shards in the order of the ranks"));
  CHECK(type_of([&] {
          std::vector<at::Tensor> tensors{OneAxis::Piece(0, {4})};
          group->broadcast(tensors)->wait();
          return tensors.front();
        }).starts_with("fault: a broadcast replaces the tensors of all ranks"));
  CHECK(type_of([&] {
          at::Tensor in = OneAxis::Terms({4});
          at::Tensor out = at::empty({2});
          c10d::ReduceScatterOptions options;
          options.reduceOp = c10d::ReduceOp::AVG;
          group->_reduce_scatter_base(out, in, options)->wait();
          return out;
        }).starts_with("fault: a reduce-scatter averages a partial tensor"));
}

TEST_CASE("a rule of one's own wins") {
  RuleTable rules = RuleTable::BuiltIn();
  rules.Add("aten::fft_fft", [](Operands& o) { return AxisTypes{o.type(0)}; });
  rules.Add("aten::_fft_r2c", [](Operands& o) { return AxisTypes{o.type(0)}; });
  OperatorChecker checker({{MeshAxis::kTp, 2, 0}}, rules);
  const OperatorScope scope(checker);
  CHECK(checker.Get(at::fft_fft(OneAxis::Piece(0, {4, 2})))[0].ToString() == "shard(0)");
}

TEST_CASE("a predicate that chooses a branch is the same on every rank") {
  const auto fault = [](const at::Tensor& predicate, MeshAxis axis = MeshAxis::kTp) {
    OperatorChecker checker({{axis, 2, 0}}, RuleTable::BuiltIn());
    const OperatorScope scope(checker);
    NotePredicate(predicate);
    if (!checker.unproven().empty()) return "unproven: " + checker.unproven().begin()->first;
    if (checker.faults().empty()) return std::string();
    const TypeFault& found = checker.faults().front();
    CHECK(found.suggested_fix == (found.what == "cond(partial)" ? SuggestedFix::kMakeSum : SuggestedFix::kGather));
    return found.what + ": " + found.message;
  };
  const std::string message = ": its predicate is not the same on all ranks, so the ranks would run different branches";
  CHECK(fault(Same({})).empty());
  CHECK(fault(Terms({})) == "cond(partial)" + message);
  CHECK(fault(Piece(0, {1})) == "cond(shard(0))" + message);
  CHECK(fault(OneAxis::As(at::rand({}), AxisType::Of(TypeKind::kVarying))) == "cond(varying)" + message);
  CHECK(fault(OneAxis::As(at::rand({}), AxisType::Of(TypeKind::kFaulty))).empty());
  CHECK(fault(at::rand({})).empty());  // a constant
  CHECK(fault(OneAxis::As(at::rand({}), AxisType())) == "unproven: cond: the layout of its predicate is not known");
  for (const MeshAxis axis : {MeshAxis::kDpShard, MeshAxis::kDpReplicate}) CHECK(fault(Terms({}), axis).empty());
}

}  // namespace
}  // namespace moonshard::test
