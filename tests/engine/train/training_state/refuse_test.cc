// What cannot be saved or loaded is said, on every rank, before anything is changed.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/optim/lbfgs.h>

#include "tests/engine/io/checkpoint/random_model.h"
#include "tests/engine/train/training_state/run.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// An optimizer that LibTorch does not have: sign descent with a memory of three kinds.
class SignDescent final : public OptimizerAdapter {
 public:
  explicit SignDescent(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& p : parameters_) sums_[p.unsafeGetTensorImpl()] = at::zeros_like(p);
  }

  std::string kind() const override { return "sign"; }
  std::vector<std::vector<at::Tensor>> Groups() const override { return {parameters_}; }
  JsonValue::Object OptionsOf(size_t) const override { return {{"rate", rate}, {"name", "sign"}}; }
  Diagnostics SetOptions(size_t, const JsonValue::Object& options) override {
    rate = options.at("rate").AsDouble();
    return {};
  }
  std::optional<ParameterMemory> MemoryOf(const at::Tensor& parameter) const override {
    ParameterMemory memory;
    memory.tensors["sum"] = sums_.at(parameter.unsafeGetTensorImpl());
    memory.tensors["scale"] = at::scalar_tensor(scale, at::kFloat);
    if (bad) memory.tensors["rows"] = at::zeros({parameter.numel() + 1});
    memory.values["rounds"] = rounds;
    return memory;
  }
  Diagnostics SetMemory(const at::Tensor& parameter, std::optional<ParameterMemory> memory) override {
    if (!memory) return {};
    sums_[parameter.unsafeGetTensorImpl()] = memory->tensors.at("sum");
    scale = memory->tensors.at("scale").item<double>();
    rounds = memory->values.at("rounds").AsInt();
    return {};
  }
  at::Tensor& SumOf(const at::Tensor& parameter) { return sums_.at(parameter.unsafeGetTensorImpl()); }

  double rate = 0.5;
  double scale = 0;
  int64_t rounds = 0;
  bool bad = false;

 private:
  std::vector<at::Tensor> parameters_;
  std::map<const void*, at::Tensor> sums_;
};

TEST_CASE("an optimizer of the host's own goes through its adapter, to another mesh too") {
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    SignDescent own(trainer.model.parameters());
    own.rate = 0.1;
    own.scale = 3.25;
    own.rounds = 41;
    for (const at::Tensor& p : trainer.model.parameters()) own.SumOf(p).copy_(p.detach() * 2);
    trainer.state.adapter = &own;
    TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
  });
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"tp=2"}, mesh);
    SignDescent own(trainer.model.parameters());
    trainer.state.adapter = &own;
    TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
    Expect(own.rate == 0.1 && own.scale == 3.25 && own.rounds == 41, "options and values");
    for (const at::Tensor& p : trainer.model.parameters()) ExpectEqual(own.SumOf(p), p.detach() * 2, "the sum");
  });
}

class MyAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
};

TEST_CASE("what cannot be saved is refused on every rank, and leaves nothing") {
  struct Case {
    std::string what;
    std::function<void(Trainer&, int64_t rank)> change;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"LBFGS",
       [](Trainer& t, int64_t) {
         t.optimizer = std::make_unique<torch::optim::LBFGS>(t.model.parameters());
         t.state.optimizer = t.optimizer.get();
       },
       {"MS0506", "LBFGS", "OptimizerAdapter"}},
      {"an optimizer that may remember more",
       [](Trainer& t, int64_t) {
         t.optimizer = std::make_unique<MyAdamW>(t.model.parameters());
         t.state.optimizer = t.optimizer.get();
       },
       {"MS0506", "MyAdamW"}},
      {"a parameter of another model, on one rank",
       [](Trainer& t, int64_t rank) {
         if (rank == 1) t.optimizer->add_param_group({{at::ones({3}).requires_grad_()}});
       },
       {"MS0506", "rank 1: parameter 0 of the optimizer's group 2 is not a parameter of the model"}},
      {"another learning rate on one rank",
       [](Trainer& t, int64_t rank) {
         if (rank == 1) t.optimizer->param_groups()[0].options().set_lr(3);
       },
       {"MS0502", "groups"}},
      {"a memory that one rank has and another has not",
       [](Trainer& t, int64_t rank) {
         if (rank == 0) t.optimizer->state().erase(t.model.parameters()[3].unsafeGetTensorImpl());
       },
       {"MS0502", "the state of the optimizer"}},
      {"a learning rate that is no number",
       [](Trainer& t, int64_t) { t.optimizer->param_groups()[0].options().set_lr(std::nan("")); },
       {"MS0506", "the value 'lr' of the optimizer is not finite"}},
      {"a text that is not UTF-8", [](Trainer& t, int64_t) { t.state.host["x"] = "\xFF"; }, {"MS0508", "UTF-8"}},
      {"a parameter that is whole",
       [](Trainer& t, int64_t) {
         const auto& all = t.model.applied().parameters();
         const auto up = std::ranges::find(all, "layer_1.up.weight", &LiveParameter::path);
         at::Tensor(up->tensor).set_data(at::zeros(up->shape, at::kDouble));
       },
       {"MS0506", "between two steps"}},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.what) {
      const ScratchFolder scratch;
      const std::vector<RankFailure> failures = RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
        Trainer trainer({"dp=2"}, mesh);
        trainer.Steps(1);
        c.change(trainer, mesh.rank());
        TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
      });
      REQUIRE(failures.size() == 2);
      for (const RankFailure& failure : failures) {
        for (const std::string& text : c.says) CHECK_THAT(failure.text, Contains(text));
      }
      CHECK_FALSE(std::filesystem::exists(scratch / "run"));
    }
  }
  SECTION("a memory of another shape") {
    const ScratchFolder scratch;
    const std::vector<RankFailure> failures = RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      SignDescent own(trainer.model.parameters());
      own.bad = true;
      trainer.state.adapter = &own;
      TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 1);
    });
    REQUIRE(failures.size() == 2);
    CHECK_THAT(failures[0].text, Contains("MS0506") && Contains("the optimizer state 'rows' cannot be saved"));
  }
  SECTION("ranks that save different steps") {
    const ScratchFolder scratch;
    const std::vector<RankFailure> failures = RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, mesh.rank());
    });
    REQUIRE(failures.size() == 2);
    CHECK_THAT(failures[1].text, Contains("MS0502") && Contains("rank 0: 0; rank 1: 1"));
  }
}

TEST_CASE("a checkpoint that does not fit is refused before the model is touched") {
  struct Case {
    std::string what;
    RunSetup setup;
    std::function<void(Trainer&)> change;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"another kind of optimizer",
       {"dp=2", true, Kind::kSgd},
       [](Trainer&) {},
       {"MS0506", "another optimizer", "adamw", "sgd"}},
      {"another number of groups",
       {"dp=2"},
       [](Trainer& t) {
         t.optimizer = std::make_unique<torch::optim::AdamW>(t.model.parameters());
         t.state.optimizer = t.optimizer.get();
       },
       {"MS0506", "number of parameter groups"}},
      {"parameters in other groups",
       {"dp=2"},
       [](Trainer& t) {
         std::swap(t.optimizer->param_groups()[0].params()[0], t.optimizer->param_groups()[1].params()[0]);
       },
       {"MS0506", "parameter group 0 differ from the checkpoint", "embed.weight"}},
  };
  const ScratchFolder scratch;
  RunRanks("dp=2", [&](DeviceMesh& mesh) {
    Trainer trainer({"dp=2"}, mesh);
    trainer.Steps(2);
    TrainingCheckpoints::Open(scratch / "run", mesh).Save(trainer.state, 2);
  });
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.what) {
      RunRanks("dp=2", [&](DeviceMesh& mesh) {
        Trainer trainer(c.setup, mesh);
        c.change(trainer);
        trainer.Steps(1);
        const std::map<std::string, at::Tensor> before = trainer.Everything();
        std::string error;
        try {
          TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
        } catch (const PlanError& thrown) {
          error = thrown.what();
        }
        for (const std::string& text : c.says) Expect(error.find(text) != std::string::npos, text + " in: " + error);
        ExpectSame(trainer.Everything(), before);
      });
    }
  }
  SECTION("no optimizer to load to is a warning") {
    RunRanks("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      trainer.state.optimizer = nullptr;
      const LoadedStep loaded = TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
      Expect(loaded.findings.size() == 1 && loaded.findings[0].severity == Severity::kWarning, "a warning");
    });
  }
  SECTION("a directory whose file 'latest' is lost") {
    std::filesystem::remove(std::filesystem::path(scratch / "run") / "latest");
    const std::vector<RankFailure> failures = RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      TrainingCheckpoints::Open(scratch / "run", mesh).Load(trainer.state);
    });
    REQUIRE(failures.size() == 2);
    CHECK_THAT(failures[0].text, Contains("MS0401") && Contains("load step 2 by its number"));
  }
  SECTION("a directory without a step") {
    const std::vector<RankFailure> failures = RunRanksFailing("dp=2", [&](DeviceMesh& mesh) {
      Trainer trainer({"dp=2"}, mesh);
      TrainingCheckpoints::Open(scratch / "nothing", mesh).Load(trainer.state);
    });
    REQUIRE(failures.size() == 2);
    CHECK_THAT(failures[0].text, Contains("MS0401") && Contains("has no file 'latest'") &&
                                     Contains("help: the directory has no complete step"));
  }
}

}  // namespace
}  // namespace moonshard::test
