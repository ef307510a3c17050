// The styles of channels, and embedding bags under the styles of lookups: each layer against itself without a plan
// (one_module.h), models of several of them on ranks and in a proof, and what is refused.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/embedding_bag.h"
#include "engine/runtime/nn/group_norm.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/stdlib/one_module.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace layers {

MOONSHARD_MODULE_IMPL(TorchConv1d, torch::nn::Conv1dImpl);
MOONSHARD_MODULE_IMPL(TorchBag, torch::nn::EmbeddingBagImpl);
MOONSHARD_MODULE_IMPL(ConvTranspose1d, torch::nn::ConvTranspose1dImpl);
MOONSHARD_MODULE_IMPL(ConvTranspose2d, torch::nn::ConvTranspose2dImpl);
MOONSHARD_MODULE_IMPL(BatchNorm2d, torch::nn::BatchNorm2dImpl);
MOONSHARD_MODULE_IMPL(Lstm, torch::nn::LSTMImpl);
MOONSHARD_MODULE_IMPL(Gru, torch::nn::GRUImpl);

}  // namespace layers

namespace {

// In float64, with the buffers.
template <class Holder, class Options>
std::function<OneModule()> OneLayer(const Options& options) {
  return [options] {
    Holder layer(options);
    layer->to(torch::kFloat64);
    return Wrap<Holder>(layer, [](Holder& m, const Tensors& x) { return Tensors{m(x[0])}; });
  };
}

std::function<Tensors()> Whole(std::vector<int64_t> shape) {
  return [shape = std::move(shape)] { return Tensors{Integers(shape, 5)}; };
}

std::vector<OneModuleCase> ChannelCases() {
  using One = torch::nn::Conv1dOptions;
  using Two = torch::nn::Conv2dOptions;
  using Three = torch::nn::Conv3dOptions;
  using nn::Conv1d;
  using nn::Conv2d;
  const Layout full = Layout::Replicate();
  const Layout channels = Layout::Shard(1);
  const double rounding = 1e-12;
  return {
      {"out", "channels_out()", OneLayer<Conv1d>(One(6, 10, 3)), Whole({2, 6, 7}), {full}, {channels}},
      {"out, in two dims",
       "channels_out { output = replicate }",
       OneLayer<Conv2d>(Two(3, 8, 2).stride(2)),
       Whole({2, 3, 4, 6}),
       {full},
       {full}},
      {"out, in three dims",
       "channels_out()",
       OneLayer<nn::Conv3d>(Three(3, 8, 2)),
       Whole({2, 3, 3, 4, 2}),
       {full},
       {channels}},
      {"out, without a batch",
       "channels_out { input = shard(-3) }",
       OneLayer<Conv2d>(Two(8, 10, 2)),
       Whole({8, 3, 4}),
       {Layout::Shard(-3)},
       {Layout::Shard(-3)}},
      {"out, of LibTorch's class",
       "channels_out()",
       OneLayer<layers::TorchConv1d>(One(6, 10, 3)),
       Whole({2, 6, 7}),
       {full},
       {channels}},
      {"out, transposed",
       "channels_out()",
       OneLayer<layers::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(6, 10, 3).stride(2)),
       Whole({2, 6, 5}),
       {full},
       {channels}},
      {"in", "channels_in()", OneLayer<Conv1d>(One(8, 5, 3)), Whole({2, 8, 7}), {channels}, {full}},
      {"in, of a whole",
       "channels_in { input = replicate, output = shard(-3) }",
       OneLayer<Conv2d>(Two(8, 6, 2)),
       Whole({2, 8, 3, 4}),
       {full},
       {channels}},
      {"in, without a batch",
       "channels_in()",
       OneLayer<Conv1d>(One(8, 5, 3)),
       Whole({8, 7}),
       {Layout::Shard(0)},
       {full}},
      {"in, transposed",
       "channels_in()",
       OneLayer<layers::ConvTranspose2d>(torch::nn::ConvTranspose2dOptions(8, 5, 2).bias(false)),
       Whole({2, 8, 3, 4}),
       {channels},
       {full}},
      {"depthwise",
       "channelwise()",
       OneLayer<Conv1d>(One(8, 8, 3).padding(1).groups(8)),
       Whole({2, 8, 7}),
       {channels},
       {channels}},
      {"a group on each rank",
       "channelwise()",
       OneLayer<Conv2d>(Two(8, 12, 2).groups(4)),
       Whole({2, 8, 4, 3}),
       {channels},
       {channels}},
      {"groups of a padded input",
       "channelwise()",
       OneLayer<Conv1d>(One(8, 8, 3).padding(2).padding_mode(torch::kCircular).groups(4)),
       Whole({2, 8, 5}),
       {channels},
       {channels}},
      {"groups of a reflected input",
       "channelwise()",
       OneLayer<Conv2d>(Two(8, 8, 3).padding(1).padding_mode(torch::kReflect).groups(4)),
       Whole({8, 4, 3}),
       {Layout::Shard(-3)},
       {Layout::Shard(-3)}},
      {"group norm",
       "channelwise()",
       OneLayer<nn::GroupNorm>(torch::nn::GroupNormOptions(4, 8)),
       Whole({2, 8, 3, 4}),
       {channels},
       {channels},
       rounding},
      {"group norm of a whole",
       "channelwise { input = replicate, output = replicate }",
       OneLayer<nn::GroupNorm>(torch::nn::GroupNormOptions(8, 8)),
       Whole({2, 8, 5}),
       {full},
       {full},
       rounding},
      {"batch norm",
       "channelwise()",
       OneLayer<layers::BatchNorm2d>(torch::nn::BatchNormOptions(10)),
       Whole({3, 10, 2, 4}),
       {channels},
       {channels},
       rounding},
  };
}

TEST_CASE("a layer of channels under a style is the layer") {
  for (const OneModuleCase& test_case : ChannelCases()) {
    for (const char* mesh : {"tp=1", "tp=2", "tp=4"}) {
      DYNAMIC_SECTION(test_case.what << " at " << mesh) { CheckOneModule(test_case, mesh); }
    }
  }
}

// How the ids of a test come.
enum class Bag { kRows, kOffsets, kLastOffset, kWeights };

// Eleven rows of six features. One bag is empty, some ids are in the same bag twice.
template <class Holder>
std::function<OneModule()> OneBag(Bag bag, const torch::nn::EmbeddingBagMode& mode, std::optional<int64_t> padding) {
  return [=] {
    auto options = torch::nn::EmbeddingBagOptions(11, 6).mode(mode).include_last_offset(bag == Bag::kLastOffset);
    if (padding) options.padding_idx(*padding);
    Holder layer(options);
    layer->to(torch::kFloat64);
    return Wrap<Holder>(layer, [bag](Holder& m, const Tensors& x) {
      if (bag == Bag::kRows) return Tensors{m(x[0])};
      if (bag == Bag::kWeights) return Tensors{m(x[0], x[1], x[2])};
      return Tensors{m(x[0], x[1])};
    });
  };
}

std::function<Tensors()> IdsOfBags(Bag bag) {
  return [bag] {
    const at::Tensor ids = torch::tensor({0, 4, 8, 9, 9, 3, 10, 4, 7, 1, 9, 4});
    if (bag == Bag::kRows) return Tensors{ids.view({4, 3})};
    if (bag == Bag::kLastOffset) return Tensors{ids, torch::tensor({0, 2, 2, 7, 12})};
    const at::Tensor begins = torch::tensor({0, 2, 2, 7});
    if (bag == Bag::kOffsets) return Tensors{ids, begins};
    return Tensors{ids, begins, Integers({12}, 4)};
  };
}

template <class Holder>
void CheckBag(const std::string& style, Bag bag, const torch::nn::EmbeddingBagMode& mode,
              std::optional<int64_t> padding) {
  const Layout full = Layout::Replicate();
  const bool exact = std::holds_alternative<torch::enumtype::kSum>(mode);
  const OneModuleCase test_case{
      style, style, OneBag<Holder>(bag, mode, padding), IdsOfBags(bag), {full, full, full}, {full}, exact ? 0 : 1e-12};
  for (const char* mesh : {"tp=1", "tp=2", "tp=4"}) {
    INFO(style << " at " << mesh << ", ids " << static_cast<int>(bag) << ", mode " << mode.index() << ", padding "
               << padding.value_or(-1));
    CHECK_NOTHROW(CheckOneModule(test_case, mesh));
  }
}

TEST_CASE("an embedding bag under a style is the bag") {
  const std::vector<std::optional<int64_t>> paddings = {std::nullopt, 9, -11};
  for (const Bag bag : {Bag::kRows, Bag::kOffsets, Bag::kLastOffset}) {
    for (const auto& padding : paddings) {
      CheckBag<layers::TorchBag>("colwise { output = replicate }", bag, torch::kMax, padding);
      CheckBag<layers::TorchBag>("colwise { output = replicate }", bag, torch::kMean, padding);
      CheckBag<nn::EmbeddingBag>("rowwise()", bag, torch::kSum, padding);
      CheckBag<nn::EmbeddingBag>("rowwise()", bag, torch::kMean, padding);
      CheckBag<nn::EmbeddingBag>("vocab_rowwise()", bag, torch::kMean, padding);
    }
  }
  for (const auto& padding : paddings) {
    CheckBag<layers::TorchBag>("colwise { output = replicate }", Bag::kWeights, torch::kSum, padding);
    CheckBag<nn::EmbeddingBag>("rowwise()", Bag::kWeights, torch::kSum, padding);
  }
}

TEST_CASE("bags of ranks without rows are zeros, and ids outside of the table are errors") {
  // Three rows on four ranks.
  const auto make = [] {
    nn::EmbeddingBag layer(torch::nn::EmbeddingBagOptions(3, 6).mode(torch::kSum));
    layer->to(torch::kFloat64);
    return Wrap<nn::EmbeddingBag>(layer,
                                  [](nn::EmbeddingBag& m, const Tensors& x) { return Tensors{m(x[0], x[1], x[2])}; });
  };
  const auto inputs = [](int64_t last) {
    return Tensors{torch::tensor({int64_t{0}, int64_t{2}, int64_t{1}, last}), torch::tensor({0, 3}), Integers({4}, 4)};
  };
  const Layout full = Layout::Replicate();
  CheckOneModule({"few rows", "rowwise()", make, [&] { return inputs(2); }, {full, full, full}, {full}}, "tp=4");
  const auto failures = RunRanksFailing("tp=2", [&](DeviceMesh& mesh) {
    PlanInputs given;
    given.mesh = mesh.shape();
    const OneModule model = make();
    const auto applied = ParallelizeModule(
        *model.root, EvaluatePlan("return plan { at('m', rowwise()) }", "bag.lua", given).ValueOrThrow(), mesh);
    model.forward(inputs(3));
  });
  // A rank may find the other one gone before it looks at the ids.
  REQUIRE(!failures.empty());
  CHECK_THAT(failures.front().text, Catch::Contains("an id is outside the table of 3 rows"));
}

// x [batch, 4, positions, positions]
struct ChannelNetImpl : torch::nn::Module {
  explicit ChannelNetImpl(int64_t groups) {
    using Options = torch::nn::Conv2dOptions;
    up = register_module("up", nn::Conv2d(Options(4, 8, 3).padding(1)));
    mix = register_module("mix", nn::Conv2d(Options(8, 8, 3).padding(1).groups(groups)));
    norm = register_module("norm", nn::GroupNorm(torch::nn::GroupNormOptions(4, 8)));
    batch = register_module("batch", layers::BatchNorm2d(torch::nn::BatchNormOptions(8)));
    wide = register_module("wide", layers::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(8, 4, 2).bias(false)));
    down = register_module("down", nn::Conv2d(Options(4, 12, 1)));
    back = register_module("back", nn::Conv2d(Options(12, 4, 1)));
    to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    double step = 0.7;
    for (at::Tensor& p : parameters()) {
      p.set_data(torch::arange(p.numel(), torch::kFloat64).mul(step += 0.3).sin().view(p.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = wide(at::gelu(batch(norm(mix(up(x))))));
    return back(at::gelu(down(h)));
  }
  nn::Conv2d up = nullptr;
  nn::Conv2d mix = nullptr;
  nn::GroupNorm norm = nullptr;
  layers::BatchNorm2d batch = nullptr;
  layers::ConvTranspose2d wide = nullptr;
  nn::Conv2d down = nullptr;
  nn::Conv2d back = nullptr;
};

Plan LayersPlan(const std::string& rules, const MeshShape& mesh) {
  PlanInputs inputs;
  inputs.mesh = mesh;
  return EvaluatePlan("return plan {\n" + rules + "\n}", "layers.lua", inputs).ValueOrThrow();
}

constexpr const char* kChannelRules = R"(
  at("{up,down}", channels_out()),
  at("{mix,norm,batch}", channelwise()),
  at("{wide,back}", channels_in()))";

// Shards within each layer alone: dims of 8 and of 12 channels are sharded and gathered in one call.
constexpr const char* kChannelRulesOfEach = R"(
  at("{up,down}", channels_out { output = replicate }),
  at("{mix,norm,batch}", channelwise { input = replicate, output = replicate }),
  at("{wide,back}", channels_in { input = replicate }))";

at::Tensor Waves(const std::vector<int64_t>& shape) {
  return torch::arange(c10::multiply_integers(shape), torch::kFloat64).cos().view(shape);
}

void ExpectNear(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const double largest = want.abs().max().item<double>();
  Expect(got.sizes() == want.sizes() && (got - want).abs().max().item<double>() <= 1e-11 * (1 + largest), what);
}

TEST_CASE("a model of channels on ranks is the model, with its running statistics") {
  const at::Tensor x = Waves({3, 4, 4, 4});
  ChannelNetImpl whole(8);
  const at::Tensor expected = whole.forward(x);
  expected.square().sum().backward();
  using Run = std::pair<const char*, const char*>;
  for (const auto& [shape, rules] :
       {Run("tp=2", kChannelRules), Run("tp=4", kChannelRules), Run("tp=2", kChannelRulesOfEach)}) {
    RunRanks(shape, [&, rules = rules](DeviceMesh& mesh) {
      const auto net = std::make_shared<ChannelNetImpl>(8);
      const auto applied = ParallelizeModule(*net, LayersPlan(rules, mesh.shape()), mesh);
      const at::Tensor y = net->forward(x);
      ExpectNear(y.detach(), expected.detach(), "the output");
      y.square().sum().backward();
      int64_t statistics = 0;
      for (const LiveParameter& p : applied->parameters()) {
        if (!p.is_buffer) {
          ExpectNear(GatherFull(*applied, p, p.tensor.grad()), whole.named_parameters()[p.path].grad(),
                     "the gradient of " + p.path);
        } else if (p.tensor.dim() == 1) {
          Expect(p.tensor.size(0) * mesh.shape().world_size() == 8, "shards of " + p.path);
          ExpectNear(GatherFull(*applied, p, p.tensor), whole.named_buffers()[p.path], p.path);
          ++statistics;
        }
      }
      Expect(statistics == 2, "running mean and variance");
    });
  }
}

template <class Net>
Proof ProveLayers(const std::string& shape, const std::string& rules, const std::function<std::shared_ptr<Net>()>& make,
                  const Tensors& inputs, const std::function<at::Tensor(Net&)>& call) {
  return ProveAtTwoSizes(MeshShape::Parse(shape).ValueOrThrow(),
                         [&](const DeviceMesh& mesh, const TypeOptions& options) {
                           const std::shared_ptr<Net> net = make();
                           const auto applied = ParallelizeModule(*net, LayersPlan(rules, mesh.shape()), mesh);
                           TypeScope scope(*applied, options);
                           for (const at::Tensor& input : inputs) scope.Input(input);
                           const at::Tensor loss = call(*net).square().mean();
                           scope.Loss(loss);
                           loss.backward();
                           return scope.Finish();
                         });
}

std::string TextOfProof(const Proof& proof) {
  std::string out;
  for (const TypeFault& fault : proof.faults) out += fault.path + ": " + fault.what + ": " + fault.message + "\n";
  for (const auto& [what, unproven] : proof.unproven) out += "unproven: " + what + " in " + unproven.first + "\n";
  for (const std::string& what : proof.sizes_not_compared) out += "not compared: " + what + "\n";
  return out;
}

TEST_CASE("a model of channels is proven") {
  const at::Tensor x = Waves({3, 4, 4, 4});
  const auto prove = [&x](const char* shape, const char* rules, int64_t groups) {
    Proof proof = ProveLayers<ChannelNetImpl>(
        shape, rules, [groups] { return std::make_shared<ChannelNetImpl>(groups); }, {x},
        [&](ChannelNetImpl& net) { return net.forward(x); });
    INFO(shape << ", groups " << groups << "\n" << TextOfProof(proof));
    CHECK(proof.holds());
    return proof;
  };
  for (const char* shape : {"tp=2", "tp=4"}) {
    for (const int64_t groups : {int64_t{8}, int64_t{4}}) prove(shape, kChannelRules, groups);
  }
  prove("tp=2", kChannelRulesOfEach, 8);
  // On dp a batch norm in training sees the rows of one rank. No rule claims it, so that its place is the model.
  const Proof proof = prove("dp_replicate=2", "ddp {}", 8);
  const auto own = std::ranges::find(proof.assumptions, Assumption::Kind::kOwnRows, &Assumption::kind);
  REQUIRE(own != proof.assumptions.end());
  CHECK(own->of == std::vector<std::string>{"aten::native_batch_norm in the model itself"});
}

template <class Holder>
struct BagNetImpl : torch::nn::Module {
  BagNetImpl(const torch::nn::EmbeddingBagMode& mode, bool weighs) {
    bag = register_module("bag", Holder(torch::nn::EmbeddingBagOptions(11, 6).mode(mode).padding_idx(9)));
    to(torch::kFloat64);
    if (weighs) importance = register_parameter("importance", Waves({12}));
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& begins) { return bag(ids, begins, importance); }
  Holder bag = nullptr;
  at::Tensor importance;
};

template <class Holder>
void CheckBagProof(const std::string& rule, const torch::nn::EmbeddingBagMode& mode, bool weighs) {
  const at::Tensor ids = torch::tensor({0, 4, 8, 9, 9, 3, 10, 4, 7, 1, 9, 4});
  const at::Tensor begins = torch::tensor({0, 2, 2, 7});
  using Net = BagNetImpl<Holder>;
  const std::string rules = rule + (weighs ? ", at('importance', replicate)" : "");
  for (const char* shape : {"tp=2", "tp=3"}) {
    const Proof proof = ProveLayers<Net>(
        shape, rules, [&] { return std::make_shared<Net>(mode, weighs); }, {ids, begins},
        [&](Net& net) { return net.forward(ids, begins); });
    INFO(rule << " at " << shape << ", mode " << mode.index() << "\n" << TextOfProof(proof));
    CHECK(proof.holds());
  }
}

TEST_CASE("embedding bags are proven") {
  const std::string columns = "at('bag', colwise { output = replicate })";
  const std::string rows = "at('bag', rowwise())";
  CheckBagProof<layers::TorchBag>(columns, torch::kSum, true);
  CheckBagProof<layers::TorchBag>(columns, torch::kMean, false);
  CheckBagProof<layers::TorchBag>(columns, torch::kMax, false);
  CheckBagProof<nn::EmbeddingBag>(rows, torch::kSum, false);
  CheckBagProof<nn::EmbeddingBag>(rows, torch::kSum, true);
  CheckBagProof<nn::EmbeddingBag>(rows, torch::kMean, false);
}

TEST_CASE("the model itself has the style of the empty pattern") {
  const at::Tensor x = Waves({4, 6});
  const auto make = [] {
    nn::Linear net(torch::nn::LinearOptions(6, 10));
    net->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    net->weight.copy_(Waves({10, 6}));
    net->bias.copy_(Waves({10}));
    return net;
  };
  nn::Linear whole = make();
  const at::Tensor expected = whole(x);
  expected.square().sum().backward();
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    nn::Linear net = make();
    const auto applied =
        ParallelizeModule(*net, LayersPlan("at('', colwise { output = replicate })", mesh.shape()), mesh);
    Expect(net->weight.size(0) == 5, "a shard");
    const at::Tensor y = net(x);
    ExpectNear(y.detach(), expected.detach(), "the output");
    y.square().sum().backward();
    ExpectNear(net->weight.grad(), whole->weight.grad().chunk(2)[static_cast<size_t>(mesh.rank())], "the gradient");
  });
  torch::nn::Linear plain(6, 10);
  const MeshShape mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  CHECK_THROWS_WITH(ParallelizeModule(*plain, LayersPlan("at('', colwise())", mesh), DeviceMesh::Recording(mesh)),
                    Catch::Contains("calls of the model itself cannot be intercepted"));
}

// What Parallelize says of one layer "m" under a style.
std::string Refusal(const std::function<OneModule()>& make, const std::string& style) {
  const OneModule model = make();
  try {
    const MeshShape mesh = MeshShape::Parse("tp=4").ValueOrThrow();
    const std::string rule = style.starts_with("at(") ? style : "at('m', " + style + ")";
    ParallelizeModule(*model.root, LayersPlan(rule, mesh), DeviceMesh::Recording(mesh));
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

template <class Holder, class Options>
std::function<OneModule()> Uncalled(const Options& options) {
  return [options] { return Wrap<Holder>(Holder(options), [](Holder&, const Tensors& x) { return x; }); };
}

TEST_CASE("layers that do not work on shards are refused, with the line, the path and what to write") {
  using One = torch::nn::Conv1dOptions;
  using BagOptions = torch::nn::EmbeddingBagOptions;
  struct Row {
    std::string style;
    std::function<OneModule()> make;
    std::string says;
  };
  const auto conv = [](int64_t groups) { return Uncalled<nn::Conv1d>(One(8, 8, 3).groups(groups)); };
  const auto lstm = Uncalled<layers::Lstm>(torch::nn::LSTMOptions(8, 8));
  for (const Row& row : std::vector<Row>{
           {"channels_out()", conv(8), "required: channelwise {}"},
           {"channels_in()", conv(8), "required: channelwise {}"},
           {"channelwise()", conv(1), "required: channels_out {} for shards of the output channels, or channels_in {}"},
           {"channelwise()", Uncalled<layers::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(8, 8, 3)),
            "required: channels_out {}"},
           {"channelwise()", conv(2), "required: a number of groups that 4 divides"},
           {"channelwise()", Uncalled<layers::TorchConv1d>(One(8, 8, 3).groups(8)), "required: moonshard::nn::Conv1d"},
           {"channelwise()", Uncalled<layers::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(8, 8, 3).groups(8)),
            "required: a full weight"},
           {"colwise()", conv(1), "use channels_out {}"},
           {"rowwise()", conv(1), "use channels_in {}"},
           {"channelwise()", Uncalled<nn::GroupNorm>(torch::nn::GroupNormOptions(2, 8)),
            "required: a number of groups that 4 divides"},
           {"channelwise()", Uncalled<nn::GroupNorm>(torch::nn::GroupNormOptions(4, 8).affine(false)),
            "owns no parameter"},
           {"channels_in()", Uncalled<layers::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(8, 8, 3)),
            "cannot leave parameter 'bias' out"},
           {"rowwise()", Uncalled<nn::EmbeddingBag>(BagOptions(11, 6).mode(torch::kMax)), "or colwise {}"},
           {"vocab_rowwise()", Uncalled<layers::TorchBag>(BagOptions(11, 6)), "or colwise {}"},
           {"rowwise()", Uncalled<nn::EmbeddingBag>(BagOptions(11, 6).max_norm(1.0)), "or colwise {}"},
           {"colwise()", lstm, "at(\"m\", replicated())"},
           {"style { params = { weight_ih_l0 = shard(0) } }", lstm, "weight_ih_l0 = shard(0) on"},
           {"at('m.weight_hh_l0', shard(1))", lstm, "at(\"m\", replicated())"},
           {"colwise()", Uncalled<layers::Gru>(torch::nn::GRUOptions(8, 8)), "cannot be sharded: each step"},
       }) {
    const std::string text = Refusal(row.make, row.style);
    INFO(row.style << "\n" << text);
    CHECK_THAT(text, Catch::Contains("layers.lua:2") && Catch::Contains("at: m") && Catch::Contains(row.says));
  }
  CHECK(Refusal(lstm, "replicated()").find("MS0309") == std::string::npos);
}

}  // namespace
}  // namespace moonshard::test
