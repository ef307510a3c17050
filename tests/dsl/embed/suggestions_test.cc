// Suggested fixes are followed as they are written: the text names a change, and with that change the model runs.
#include <catch2/catch.hpp>

#include <string>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "engine/analysis/prove/type_scope.h"
#include "tests/dsl/embed/third_party.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

Plan PlanOfText(const std::string& text, const MeshShape& mesh) {
  return EvaluatePlan(text, "fix.lua", {.mesh = mesh}).ValueOrThrow();
}

// What Parallelize throws on two ranks; "" where it throws nothing and `run`, with what it made, ends.
template <class Make, class Run>
std::string ErrorOf(const std::string& plan, Make&& make, Run&& run) {
  std::string error;
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    try {
      ApplyOptions options;
      options.initial = InitialValues::kUnchecked;  // thread ranks share a generator
      auto model = Parallelize(make(), PlanOfText(plan, mesh.shape()), mesh, options);
      run(model);
    } catch (const PlanError& thrown) {
      if (mesh.rank() == 0) error = thrown.what();
    }
  });
  return error;
}

bool Says(const std::string& text, const std::string& part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

struct SequenceImpl : torch::nn::Module {
  explicit SequenceImpl(torch::nn::Sequential given) : seq(register_module("seq", std::move(given))) {}
  at::Tensor forward(at::Tensor x) { return seq->forward(x); }
  torch::nn::Sequential seq;
};
MOONSHARD_MODULE(Sequence);

const auto kRunSequence = [](auto& model) {
  const at::Tensor x = torch::ones({2, 16}).requires_grad_();
  model.forward(x).sum().backward();
  Expect(model.applied().Findings().empty(), ToText(model.applied().Findings()));
};

TEST_CASE("MS0501 for an Impl in a Sequential names the holder, which runs") {
  const std::string plan = R"(return plan { api = 1, recompute { "seq.0" } })";
  const std::string error = ErrorOf(
      plan, [] { return Sequence(torch::nn::Sequential(third_party::GptMlpImpl(third_party::GptOptions()))); },
      kRunSequence);
  CHECK(Says(error, "MS0501"));
  CHECK(Says(error, "where the model creates 'seq.0' use GptMlp(...), not GptMlpImpl(...)"));
  CHECK(ErrorOf(
            plan, [] { return Sequence(torch::nn::Sequential(third_party::GptMlp(third_party::GptOptions()))); },
            kRunSequence) == "");

  const std::string sharded = R"(return plan { api = 1, at("seq.0", colwise { output = replicate }) })";
  const std::string bare = ErrorOf(
      sharded, [] { return Sequence(torch::nn::Sequential(nn::LinearImpl(16, 4))); }, kRunSequence);
  CHECK(Says(bare, "use moonshard::nn::Linear(...), not moonshard::nn::LinearImpl(...)"));
  CHECK(ErrorOf(
            sharded, [] { return Sequence(torch::nn::Sequential(nn::Linear(16, 4))); }, kRunSequence) == "");
  const std::string plain = ErrorOf(
      sharded, [] { return Sequence(torch::nn::Sequential(torch::nn::Linear(16, 4))); }, kRunSequence);
  CHECK(Says(plain, "use moonshard::nn::Linear in place of torch::nn::Linear"));
}

TEST_CASE("MS0501 for another layer of LibTorch names the macro that makes it hookable") {
  const std::string plan = R"(return plan { api = 1, recompute { "seq.0" } })";
  const auto run = [](auto& model) { model.forward(torch::ones({1, 3, 8, 8})).sum().backward(); };
  const torch::nn::Conv2dOptions options(3, 4, 2);
  const std::string error = ErrorOf(
      plan, [&] { return Sequence(torch::nn::Sequential(torch::nn::Conv2d(options))); }, run);
  CHECK(Says(error, "a class that MOONSHARD_MODULE_IMPL(Conv2d, torch::nn::Conv2dImpl) defines"));
  CHECK(ErrorOf(
            plan, [&] { return Sequence(torch::nn::Sequential(third_party::Conv2d(options))); }, run) == "");
}

struct AttendingImpl : torch::nn::Module {
  AttendingImpl()
      : attn(register_module("attn", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 2)))) {}
  at::Tensor forward(at::Tensor x) { return std::get<0>(attn(x, x, x)); }
  torch::nn::MultiheadAttention attn;
};
MOONSHARD_MODULE(Attending);

TEST_CASE("MS0501 for LibTorch's MultiheadAttention names what can be done") {
  const auto make = [] { return Attending(); };
  const auto run = [](auto& model) { model.forward(torch::ones({3, 1, 8})).sum().backward(); };
  const std::string child = ErrorOf(R"(return plan { api = 1, at("attn.out_proj", rowwise {}) })", make, run);
  CHECK(Says(child, "the LibTorch module 'attn' does not call this module"));
  CHECK(Says(child, R"(at("attn{,.**}", replicated()))"));
  const std::string itself =
      ErrorOf(R"(return plan { api = 1, at("attn", style { name = "summed", outputs = { { partial, replicate } } }) })",
              make, run);
  CHECK(Says(itself, "LibTorch's MultiheadAttention computes with its full sizes"));
  CHECK(Says(itself, R"(at("attn{,.**}", replicated()))"));
  CHECK(ErrorOf(R"(return plan { api = 1, at("attn{,.**}", replicated()) })", make, run) == "");
}

// A table of the host's own, which another layer shares.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(const at::Tensor& given = {}) {
    weight = register_parameter("weight", given.defined() ? given : torch::ones({4, 16}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight.t()); }
  at::Tensor weight;
};
MOONSHARD_MODULE(Table);

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embed(register_module("embed", nn::Embedding(4, 16))),
        head(register_module("head", nn::Linear(torch::nn::LinearOptions(16, 4).bias(false)))),
        table(register_module("table", Table())) {}
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = embed(ids);
    return head(x) + table(x);
  }
  nn::Embedding embed;
  nn::Linear head;
  Table table;
};
MOONSHARD_MODULE(Tied);

TEST_CASE("MS0509 names ways to share a tensor, which work") {
  const std::string plan = R"(return plan { api = 1, default(replicated()) })";
  const auto run = [](auto& model) {
    model.forward(torch::arange(4)).sum().backward();
    Expect(model.parameters().size() == 1, "three names of one tensor: " + std::to_string(model.parameters().size()));
  };
  const auto stale = [&](const std::function<void(Tied&)>& change) {
    return ErrorOf(
        plan,
        [&] {
          Tied net;
          change(net);
          return net;
        },
        run);
  };
  const std::string linear = stale([](Tied& net) { net->head->weight = net->embed->weight; });
  CHECK(Says(linear, "call TieWeight(tensor) of this moonshard::nn::Linear instead of the assignment"));
  const std::string embedding = stale([](Tied& net) { net->embed->weight = net->head->weight; });
  CHECK(Says(embedding, "if the other layer is a moonshard::nn::Linear, call its TieWeight(weight)"));
  const std::string own = stale([](Tied& net) { net->table->weight = net->embed->weight; });
  CHECK(Says(own, "weight = register_parameter(\"weight\", given)"));
  CHECK(stale([](Tied& net) {
          net->head->TieWeight(net->embed->weight);
          const Table table(net->embed->weight);
          net->replace_module("table", table);
          net->table = table;
        }) == "");
}

// Parameters of the model itself under a rule of their own, and a block whose forward has the number of heads fixed.
struct FixedHeadsImpl : torch::nn::Module {
  FixedHeadsImpl() : q(register_module("q", nn::Linear(16, 16))), o(register_module("o", nn::Linear(16, 16))) {}
  at::Tensor forward(const at::Tensor& x) {
    return o(q(x).view({x.size(0), x.size(1), 4, 4}).transpose(1, 2).transpose(1, 2).reshape(x.sizes()));
  }
  nn::Linear q;
  nn::Linear o;
};
MOONSHARD_MODULE(FixedHeads);

struct WithClsImpl : torch::nn::Module {
  WithClsImpl() : block(register_module("block", FixedHeads())) {
    cls = register_parameter("cls", torch::ones({1, 1, 16}));
    pos = register_parameter("pos", torch::ones({1, 4, 16}));
  }
  at::Tensor forward(const at::Tensor& x) { return block(at::cat({cls.expand({x.size(0), 1, 16}), x}, 1) + pos); }
  at::Tensor cls;
  at::Tensor pos;
  FixedHeads block;
};
MOONSHARD_MODULE(WithCls);

TEST_CASE("a fault of an attention is not blamed on a rule for other parameters") {
  const MeshShape shape = MeshShape::Parse("tp=2").ValueOrThrow();
  const Plan plan = PlanOfText(R"(return plan {
  api = 1,
  at("{cls,pos}", replicate),
  at("block.q", colwise { heads = 4 }),
  at("block.o", rowwise {}),
})",
                               shape);
  auto model = Parallelize(WithCls(), plan, DeviceMesh::Recording(shape));
  TypeScope scope(model.applied());
  try {
    model.forward(torch::ones({2, 3, 16})).sum().backward();
  } catch (const std::exception& error) {
    scope.Stopped(error.what());
  }
  Proof proof = scope.Finish();
  REQUIRE_FALSE(proof.faults.empty());
  const Diagnostics found = ToDiagnostics(proof, model.applied().plan());
  INFO(ToText(found));
  CHECK(found.front().path == "block");
  CHECK(found.front().where.line != 3);
}

TEST_CASE("models of third parties are proven with what an embedder has at hand") {
  const MeshShape shape = MeshShape::Parse("tp=2").ValueOrThrow();
  const auto prove = [&]<class Case>(Case) {
    std::string text;
    const Proof proven = ProveAtTwoSizes(shape, [&](const DeviceMesh& mesh, const TypeOptions& options) {
      torch::manual_seed(1);
      auto model = Parallelize(MakeThirdParty<Case>(), ThirdPartyPlan<Case>(mesh.shape()), mesh);
      TypeScope scope(model.applied(), options);
      const at::Tensor loss = Case::Step(model.net());
      scope.Loss(loss);
      loss.backward();
      Proof proof = scope.Finish();
      text = ToText(ToDiagnostics(proof, model.applied().plan()));
      return proof;
    });
    CHECK(proven.holds() == text.empty());
    return text;
  };
  CHECK(prove(GptCase()) == "");
  CHECK(prove(T5Case()) == "");
  CHECK(prove(VitCase()) == "");
}

}  // namespace
}  // namespace moonshard::test
