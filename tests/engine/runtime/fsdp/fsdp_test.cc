// A small model under fsdp and ddp on thread ranks, in float64, against the same model on one rank with all inputs:
// outputs, gradients, parameters after steps, collectives against the prediction.
#include <catch2/catch.hpp>

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/embedding_bag.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/predicted.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

// The ids of micro-batch `micro` on the data-parallel rank `r`.
at::Tensor Ids(int64_t r, int64_t micro) {
  return (torch::arange(2 * 5) * (r + 2) + 3 * micro + r).remainder(kVocabulary).view({2, 5});
}

at::Tensor LossOf(const at::Tensor& logits, int64_t r) {
  return (torch::log_softmax(logits, -1) *
          torch::cos(torch::arange(logits.numel(), torch::kFloat64) + r).view_as(logits))
      .sum();
}

struct Setup {
  std::string mesh;
  bool shards = true;
  DataParallel::Reshard reshard = DataParallel::Reshard::kAllButLast;
  bool wrap = true;
  bool mean = true;
  int64_t ranks = 0;  // to reshard to
  int64_t prefetch = 1;
  bool accumulate_shards = false;
  bool ignore = false;  // the second layer
  int64_t bucket = DataParallel::kBucketBytes;
  std::string Name() const {
    const char* const how[] = {"always", "never", "all but last", "some"};
    return mesh + (shards ? std::string(" fsdp, reshard ") + how[static_cast<size_t>(reshard)] : " ddp") +
           (wrap ? "" : ", one unit") + (mean ? "" : ", sum") +
           (prefetch == 1   ? ""
            : prefetch == 0 ? ", none ahead"
                            : ", two ahead") +
           (accumulate_shards ? ", shards wait" : "") + (ignore ? ", one ignored" : "") +
           (bucket == DataParallel::kBucketBytes ? "" : ", buckets of " + std::to_string(bucket));
  }
};

// The sequence is sharded on cp from the embedding's ids to the head's logits; the layers treat all tokens alike.
Plan ContextRules() {
  Placement sequence;
  sequence[MeshAxis::kCp] = Layout::Shard(1);
  Plan plan = NetRules();
  for (Rule& rule : plan.rules) {
    for (auto* moves : {&rule.style.inputs, &rule.style.outputs}) {
      for (std::optional<Redistribution>& move : *moves) {
        move->from[MeshAxis::kCp] = move->to[MeshAxis::kCp] = Layout::Shard(1);
      }
    }
  }
  Style embed = plan.rules.back().style;
  Style head = embed;
  embed.inputs = {Redistribution{Placement(), sequence}};
  embed.outputs = {Redistribution{sequence, sequence}};
  head.inputs = {Redistribution{sequence, sequence}};
  head.outputs = {Redistribution{sequence, Placement()}};
  plan.rules.back().pattern = "{layer_*,layer_*.norm}";
  for (const auto& [pattern, style] : {std::pair("embed", embed), std::pair("head", head)}) {
    Rule& rule = plan.rules.emplace_back();
    rule.pattern = pattern;
    rule.style = style;
  }
  return plan;
}

Plan PlanOf(const Setup& setup) {
  Plan plan = setup.mesh.find("cp") == std::string::npos ? NetRules() : ContextRules();
  DataParallel section;
  section.shards = setup.shards;
  if (setup.wrap) section.wrap = {{"layer_*"}};
  section.reshard = setup.reshard;
  section.mean = setup.mean;
  section.reshard_ranks = setup.ranks;
  section.prefetch_forward = section.prefetch_backward = setup.prefetch;
  section.accumulate_shards = setup.accumulate_shards;
  section.bucket_bytes = setup.bucket;
  if (setup.ignore) section.ignored = {{"layer_1"}};
  plan.data_parallel = section;
  return plan;
}

int64_t DataRanks(const MeshShape& mesh) { return mesh.size(MeshAxis::kDpShard) * mesh.size(MeshAxis::kDpReplicate); }

int64_t DataRank(const DeviceMesh& mesh) {
  return mesh.coordinate(MeshAxis::kDpReplicate) * mesh.shape().size(MeshAxis::kDpShard) +
         mesh.coordinate(MeshAxis::kDpShard);
}

using Grads = std::map<std::string, at::Tensor>;

// The gradients of one step of `micros` micro-batches on all inputs.
Grads FullGrads(Net& net, int64_t ranks, int64_t micros, bool mean) {
  net->zero_grad();
  for (int64_t micro = 0; micro < micros; ++micro) {
    for (int64_t r = 0; r < ranks; ++r) {
      (LossOf(net(Ids(r, micro)), r) / static_cast<double>(mean ? ranks : 1)).backward();
    }
  }
  Grads grads;
  for (const auto& entry : net->named_parameters()) grads[entry.key()] = entry.value().grad();
  return grads;
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  Expect(got.defined() == want.defined(), what + ": a tensor or none");
  if (!got.defined()) return;
  Expect(got.sizes() == want.sizes(), what + ": another shape");
  if (got.numel() == 0) return;
  const double difference = ((got - want).abs().max() / (1 + want.abs().max())).item<double>();
  Expect(difference < 1e-12, what + " differs by " + std::to_string(difference));
}

void ExpectGrads(const AppliedPlan& applied, const Grads& want) {
  for (const LiveParameter& p : applied.parameters()) {
    ExpectClose(GatherFull(applied, p, p.tensor.grad()), want.at(p.path), "gradient of " + p.path);
  }
}

void RunMicros(ParallelModel<Net>& model, const DeviceMesh& mesh, int64_t micros, bool sync_each) {
  for (int64_t micro = 0; micro < micros; ++micro) {
    model.applied().SetGradientSync(sync_each || micro + 1 == micros);
    LossOf(model.forward(Ids(DataRank(mesh), micro)), DataRank(mesh)).backward();
  }
}

std::vector<Setup> Setups() {
  using R = DataParallel::Reshard;
  return {
      {"dp=2"},
      {"dp=2", true, R::kAlways},
      {"dp=2", true, R::kNever},
      {"dp=2", true, R::kAllButLast, false},
      {"dp=2", true, R::kAllButLast, true, false},
      {"dp=3"},
      {"dp=4", true, R::kAlways},
      {"dp_replicate=2,dp_shard=2"},
      {"dp=2,tp=2"},
      {"dp=2,tp=2", true, R::kNever},
      {"dp_replicate=2"},
      {"dp=2", false},
      {"dp=3", false},
      {"dp_replicate=2,dp_shard=2", false},
      {"dp=2,tp=2", false},
      {"tp=2"},
      {.mesh = "dp=2", .reshard = R::kAlways, .prefetch = 0},
      {.mesh = "dp=3", .reshard = R::kAlways, .prefetch = 2},
      {.mesh = "dp=4", .reshard = R::kSome, .ranks = 2},
      {.mesh = "dp_replicate=2,dp_shard=2", .reshard = R::kNever, .accumulate_shards = true},
      {.mesh = "dp=2,tp=2", .ignore = true},
      {.mesh = "dp=2", .shards = false, .bucket = 1},
      {.mesh = "dp=3", .shards = false, .bucket = 600},
      {.mesh = "dp=2,tp=2", .shards = false, .bucket = 600},
      {.mesh = "dp_replicate=2,dp_shard=2", .shards = false, .bucket = 600},
      {.mesh = "dp=2", .shards = false, .bucket = 0},
      {"cp=2"},
      {"cp=3", true, R::kAlways},
      {"cp=2", false},
      {"dp=2,cp=2"},
      {"dp=2,cp=2", true, R::kAlways},
      {"dp=3,cp=2", true, R::kNever},
      {"dp=2,cp=2", true, R::kAllButLast, false},
      {"dp=2,cp=2", true, R::kAllButLast, true, false},
      {"dp_replicate=2,cp=2"},
      {"dp=2,cp=2,tp=2"},
      {"dp=2,cp=2", false},
      {.mesh = "dp=2,cp=2", .reshard = R::kSome, .ranks = 2},
      {.mesh = "dp=2,cp=2", .reshard = R::kNever, .accumulate_shards = true},
      {.mesh = "dp=2,cp=2", .ignore = true},
      {.mesh = "dp=2,cp=2,tp=2", .shards = false, .bucket = 600},
  };
}

TEST_CASE("gradients under fsdp and ddp are those of one rank") {
  struct Kind {
    std::string what;
    Behaviour behaviour;
  };
  const Kind kinds[] = {{"plain", {}},
                        {"a layer called twice", {.twice = true}},
                        {"a layer not called", {.skip_last = true}},
                        {"frozen parameters", {.frozen = true}}};
  for (const Setup& setup : Setups()) {
    for (const Kind& kind : kinds) {
      for (int64_t micros : {1, 3}) {
        for (bool sync_each : {true, false}) {
          if (micros == 1 && !sync_each) continue;
          DYNAMIC_SECTION(setup.Name() << ", " << kind.what << ", " << micros << (sync_each ? " synced" : " waiting")) {
            const MeshShape shape = MeshShape::Parse(setup.mesh).ValueOrThrow();
            Net full = MakeNet(kind.behaviour);
            const Grads want = FullGrads(full, DataRanks(shape), micros, setup.mean);
            RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
              auto model = Parallelize(MakeNet(kind.behaviour), PlanOf(setup), mesh);
              RunMicros(model, mesh, micros, sync_each);
              ExpectGrads(model.applied(), want);
              double norm = 0;
              for (const auto& [path, grad] : want) {
                if (grad.defined()) norm += grad.pow(2).sum().item<double>();
              }
              Expect(std::abs(GradNorm(model) - std::sqrt(norm)) < 1e-9 * (1 + std::sqrt(norm)), "the norm");
            });
          }
        }
      }
    }
  }
}

TEST_CASE("steps under fsdp are those of one rank") {
  for (const Setup& setup : Setups()) {
    for (bool adam : {false, true}) {
      DYNAMIC_SECTION(setup.Name() << (adam ? " AdamW" : " SGD")) {
        const int64_t ranks = DataRanks(MeshShape::Parse(setup.mesh).ValueOrThrow());
        const auto optimizer_for =
            [adam](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
          if (adam) {
            return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-2));
          }
          return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1e-2));
        };
        Net full = MakeNet({});
        const auto full_optimizer = optimizer_for(full->parameters());
        for (int step = 0; step < 4; ++step) {
          FullGrads(full, ranks, 2, setup.mean);
          full_optimizer->step();
        }
        const auto want = full->named_parameters();
        RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
          auto model = Parallelize(MakeNet({}), PlanOf(setup), mesh);
          const auto optimizer = optimizer_for(model.parameters());
          for (int step = 0; step < 4; ++step) {
            optimizer->zero_grad();
            RunMicros(model, mesh, 2, step % 2 == 0);
            {
              // An evaluation between the steps.
              const torch::NoGradGuard no_grad;
              model.forward(Ids(0, 0));
            }
            optimizer->step();
          }
          for (const LiveParameter& p : model.applied().parameters()) {
            const double tolerance = adam ? 1e-9 : 1e-12;
            const at::Tensor got = GatherFull(model, p, p.tensor.detach());
            Expect((got - want[p.path]).abs().max().item<double>() < tolerance, p.path + " after the steps");
          }
        });
      }
    }
  }
}

TEST_CASE("a rank holds its share, and the collectives are those predicted") {
  for (const Setup& setup : Setups()) {
    DYNAMIC_SECTION(setup.Name()) {
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        auto model = Parallelize(MakeNet({}), PlanOf(setup), mesh);
        RunMicros(model, mesh, 1, true);
        model.applied().ClearCounts();
        RunMicros(model, mesh, 1, true);
        ExpectPredicted(model.applied(), mesh.rank(), Tokens{2, 5});
        int64_t bytes = 0;
        for (const LiveParameter& p : model.applied().parameters()) {
          bytes += static_cast<int64_t>(p.tensor.storage().nbytes());
          Expect(p.tensor.is_leaf() && p.tensor.grad().sizes() == p.tensor.sizes(), "a leaf with its gradient");
          bytes -= p.tensor.numel() * 8;
        }
        Expect(bytes == 0, "no more storage than the shards");
      });
    }
  }
}

TEST_CASE("after an exception the next step is exact") {
  for (const Setup& setup : Setups()) {
    for (bool backward : {false, true}) {
      DYNAMIC_SECTION(setup.Name() << (backward ? " backward" : " forward")) {
        Net full = MakeNet({});
        const Grads want = FullGrads(full, DataRanks(MeshShape::Parse(setup.mesh).ValueOrThrow()), 1, setup.mean);
        RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
          Behaviour behaviour;
          behaviour.throw_forward = !backward;
          behaviour.throw_backward = backward;
          auto model = Parallelize(MakeNet(behaviour), PlanOf(setup), mesh);
          bool thrown = false;
          try {
            RunMicros(model, mesh, 1, true);
          } catch (const std::runtime_error& error) {
            thrown = std::string(error.what()).find("planted") != std::string::npos;
          }
          Expect(thrown, "the planted exception");
          model.net()->layers[1]->throws = model.net()->layers[1]->throws_backward = false;
          model.net()->zero_grad();
          RunMicros(model, mesh, 1, true);
          ExpectGrads(model.applied(), want);
        });
      }
    }
  }
}

TEST_CASE("zero_grad and DropUnsyncedGradients undo the micro-batches of an abandoned step") {
  for (const Setup& setup : Setups()) {
    DYNAMIC_SECTION(setup.Name()) {
      Net full = MakeNet({});
      const Grads want = FullGrads(full, DataRanks(MeshShape::Parse(setup.mesh).ValueOrThrow()), 1, setup.mean);
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        auto model = Parallelize(MakeNet({}), PlanOf(setup), mesh);
        model.applied().SetGradientSync(false);
        LossOf(model.forward(Ids(DataRank(mesh), 1)), DataRank(mesh)).backward();
        model.net()->zero_grad();
        model.applied().DropUnsyncedGradients();
        RunMicros(model, mesh, 1, true);
        ExpectGrads(model.applied(), want);
      });
    }
  }
}

TEST_CASE("GatherFull counts the bytes of what it gathers") {
  for (const auto& [mesh_text, gathers, bytes] :
       {std::tuple("dp=2", 1, 10 * kHidden * 8), std::tuple("dp=2,tp=2", 2, 15 * kHidden * 8)}) {
    RunRanks(mesh_text, [&, gathers = gathers, bytes = bytes](DeviceMesh& mesh) {
      auto model = Parallelize(MakeNet({}), PlanOf(Setup{.mesh = mesh_text}), mesh);
      for (const LiveParameter& parameter : model.applied().parameters()) {
        if (parameter.path != "layer_0.up.weight") continue;
        model.applied().ClearCounts();
        GatherFull(model, parameter, parameter.tensor);
        const CollectiveCounts counts = model.applied().counts();
        const CollectiveCount& count = counts.of(Direction::kForward, CollectiveKind::kAllGather);
        Expect(count.count == gathers && count.bytes == bytes,
               std::to_string(count.count) + " gathers of " + std::to_string(count.bytes));
      }
    });
  }
}

TEST_CASE("what was gathered is not used after the shards have changed") {
  for (const Setup& setup : Setups()) {
    DYNAMIC_SECTION(setup.Name()) {
      Net full = MakeNet({});
      const at::Tensor before = full(Ids(0, 0)).detach();
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& p : full->parameters()) p.mul_(0.5);
      }
      const at::Tensor after = full(Ids(0, 0)).detach();
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        auto model = Parallelize(MakeNet({}), PlanOf(setup), mesh);
        // Forwards whose backward never comes leave units whole that are not resharded.
        for (int i = 0; i < 2; ++i) ExpectClose(model.forward(Ids(0, 0)).detach(), before, "the logits");
        {
          const torch::NoGradGuard no_grad;
          for (at::Tensor& p : model.parameters()) p.mul_(0.5);
        }
        ExpectClose(model.forward(Ids(0, 0)).detach(), after, "the logits of changed parameters");
      });
    }
  }
}

TEST_CASE("a model that is gone leaves no parameter behind") {
  for (const Setup& setup : {Setup{"dp=2"}, Setup{"dp=2", false}}) {
    RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
      std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> parameters;
      {
        auto model = Parallelize(MakeNet({}), PlanOf(setup), mesh);
        RunMicros(model, mesh, 1, true);
        for (const at::Tensor& p : model.parameters()) parameters.emplace_back(p.getIntrusivePtr());
      }
      for (const auto& parameter : parameters) Expect(parameter.expired(), "a parameter is still held");
    });
  }
}

TEST_CASE("a collective without a rank says whose parameters it was for, and the plan's line") {
  using Mode = CheckOptions::Mode;
  for (bool shards : {true, false}) {
    for (Mode mode : {Mode::kFirst, Mode::kNever}) {
      DYNAMIC_SECTION((shards ? "fsdp" : "ddp") << (mode == Mode::kFirst ? ", compared" : ", not compared")) {
        std::string said;
        const auto body = [&](DeviceMesh& mesh) {
          Plan plan = PlanOf({.mesh = "dp=2", .shards = shards});
          plan.data_parallel->source.line = 7;
          ApplyOptions options;
          options.check.mode = mode;
          auto model = Parallelize(MakeNet({}), plan, mesh, options);
          RunMicros(model, mesh, 1, true);
          if (mesh.rank() == 1) throw std::runtime_error("this rank goes away");
          RunMicros(model, mesh, 1, true);
        };
        for (const RankFailure& failed : RunRanksFailing("dp=2", body)) {
          if (failed.rank == 0) said = failed.text;
        }
        CHECK_THAT(said, Catch::Contains("MS0503") && Catch::Contains("(line 7)"));
        CHECK_THAT(said, Catch::Contains(shards ? "the parameters of unit " : "the sum of the gradients"));
      }
    }
  }
}

// What a rank says of `step`, which must fail on every rank alike, after which a step is exact.
std::string RefusalOf(const std::function<void(ParallelModel<Net>&, const DeviceMesh&)>& step) {
  Net full = MakeNet({});
  const Grads want = FullGrads(full, 2, 1, true);
  std::string text;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(MakeNet({}), PlanOf({"dp=2"}), mesh);
    bool thrown = false;
    try {
      step(model, mesh);
    } catch (const PlanError& error) {
      thrown = true;
      if (mesh.rank() == 0) text = error.what();
    }
    Expect(thrown, "no PlanError");
    model.net()->zero_grad();
    RunMicros(model, mesh, 1, true);
    ExpectGrads(model.applied(), want);
  });
  return text;
}

TEST_CASE("a backward with create_graph through units is an error") {
  const std::string text = RefusalOf([](ParallelModel<Net>& model, const DeviceMesh& mesh) {
    LossOf(model.forward(Ids(mesh.rank(), 0)), mesh.rank()).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  });
  CHECK_THAT(text, Catch::Contains("MS0506") && Catch::Contains("create_graph") && Catch::Contains("unit (the root)"));
}

TEST_CASE("parameters that are converted after Parallelize are an error under fsdp") {
  const std::string text = RefusalOf([](ParallelModel<Net>& model, const DeviceMesh& mesh) {
    std::vector<at::Tensor> parameters = model.net()->layers[1]->parameters();
    std::vector<at::Tensor> shards;
    for (const at::Tensor& p : parameters) shards.push_back(p.variable_data());
    model.net()->layers[1]->to(torch::kBFloat16);
    try {
      RunMicros(model, mesh, 1, true);
    } catch (const PlanError&) {
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(shards[i]);
      throw;
    }
  });
  CHECK_THAT(text, Catch::Contains("MS0514") && Catch::Contains("'layer_1.up.weight'") &&
                       Catch::Contains("BFloat16 on cpu") && Catch::Contains("Double on cpu") &&
                       Catch::Contains("unit 'layer_1'"));
}

struct BagImpl : torch::nn::Module {
  explicit BagImpl(bool sparse) {
    bag = register_module(
        "bag", nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kVocabulary, kHidden).mode(torch::kSum).sparse(sparse)));
  }
  at::Tensor forward(const at::Tensor& ids) { return bag(ids); }
  nn::EmbeddingBag bag = nullptr;
};
MOONSHARD_MODULE(Bag);

TEST_CASE("a sparse gradient of a unit is an error, a dense one is not") {
  for (bool sparse : {true, false}) {
    std::string text;
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      Style full;
      full.name = "whole";
      Plan plan = PlanOfRules("bag", {{"bag", full}});
      plan.data_parallel = DataParallel();
      auto model = Parallelize(Bag(sparse), plan, mesh, {.initial = InitialValues::kUnchecked});
      bool thrown = false;
      try {
        model.forward(Ids(mesh.rank(), 0)).sum().backward();
      } catch (const PlanError& error) {
        thrown = true;
        if (mesh.rank() == 0) text = error.what();
      }
      Expect(thrown == sparse, "an error where the gradient is sparse");
    });
    if (!sparse) continue;
    CHECK_THAT(text, Catch::Contains("MS0506") && Catch::Contains("'bag.weight'") && Catch::Contains("sparse = false"));
  }
}

TEST_CASE("what fsdp cannot do is said before the model is touched") {
  const auto failure = [](const std::function<void(Plan&)>& change, bool hookable) {
    std::string text;
    for (const RankFailure& failed : RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
           Plan plan = PlanOf({"dp=2"});
           change(plan);
           Net net = MakeNet({});
           if (hookable) {
             ParallelizeModule(*net, plan, mesh);
           } else {
             const auto root = std::make_shared<torch::nn::Module>();
             root->register_module("net", net);
             for (Rule& rule : plan.rules) rule.pattern = "net." + rule.pattern;
             plan.data_parallel->wrap = {{"net.layer_*"}};
             ParallelizeModule(*root, plan, mesh);
           }
         })) {
      text += failed.text;
    }
    return text;
  };
  using Catch::Contains;
  CHECK_THAT(failure([](Plan&) {}, false), Contains("MS0501") && Contains("the model itself"));
  CHECK_THAT(failure([](Plan& plan) { plan.data_parallel->wrap = {{"layers.*"}}; }, true),
             Contains("MS0202") && Contains("'layers.*'"));
  CHECK_THAT(failure(
                 [](Plan& plan) {
                   Placement placement;
                   placement[MeshAxis::kDpShard] = Layout::Shard(1);
                   plan.rules[0].style.params["weight"] = placement;
                 },
                 true),
             Contains("MS0506") && Contains("dp_shard"));
}

}  // namespace
}  // namespace moonshard::test
