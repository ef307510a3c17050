// A model that was made without values says so before its first forward, on thread ranks.
#include <catch2/catch.hpp>

#include <cstring>
#include <string>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/unshard_scope.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

at::Tensor Ids() { return torch::arange(6).view({2, 3}); }

ParallelModel<Net> Deferred(DeviceMesh& mesh) {
  std::optional<Net> net;
  {
    const nn::DeferInit defer;
    net.emplace();
  }
  Plan plan = NetRules();
  if (mesh.shape().size(MeshAxis::kDpShard) > 1) plan.data_parallel.emplace().wrap = {{"layer_*"}};
  return Parallelize(*net, plan, mesh);
}

// What the first forward says; "" where it runs.
template <class Model>
std::string Said(ParallelModel<Model>& model, const at::Tensor& input = Ids()) {
  try {
    model.forward(input);
  } catch (const PlanError& error) {
    for (const Diagnostic& d : error.diagnostics()) Expect(d.finding == Finding::kNoValues, "the finding");
    return error.what();
  }
  return "";
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("a forward without values names what has none") {
  for (const char* mesh_text : {"tp=1", "tp=2", "dp=2", "dp=2,tp=2"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [](DeviceMesh& mesh) {
        auto model = Deferred(mesh);
        const std::string none = Said(model);
        Expect(Has(none, "MS0512") && Has(none, "'embed.weight'") && Has(none, "LoadCheckpoint"), none);
        Expect(Has(none, " other tensors"), "how many more there are");
        Expect(!Has(none, "scale"), "what was made with a value has one: " + none);
        Initialize(model.applied(), 3, DecoderInit());
        Expect(Said(model).empty(), "after Initialize");
      });
    }
  }
}

TEST_CASE("one parameter that was left out is named alone") {
  RunRanks("dp=2", [](DeviceMesh& mesh) {
    auto model = Deferred(mesh);
    const torch::NoGradGuard no_grad;
    for (const LiveParameter& p : model.applied().parameters()) {
      if (p.path != "layer_1.up.weight") p.tensor.detach().fill_(0.5);
    }
    const std::string said = Said(model);
    Expect(Has(said, "'layer_1.up.weight'") && !Has(said, "layer_0") && !Has(said, "embed"), said);
    Expect(!Said(model).empty(), "it stays so");
    for (const LiveParameter& p : model.applied().parameters()) {
      if (p.path == "layer_1.up.weight") p.tensor.detach().zero_();
    }
    Expect(Said(model).empty(), "until it has values");
  });
}

constexpr c10::ScalarType kCounterTypes[] = {at::kBool,   at::kByte, at::kChar,   at::kShort,
                                             at::kInt,    at::kLong, at::kUInt16, at::kUInt32,
                                             at::kUInt64, at::kHalf, at::kDouble, at::kComplexFloat};

// A buffer of every type, made without values under DeferInit.
struct CountersImpl : torch::nn::Module {
  CountersImpl() {
    layer = register_module("layer", nn::Linear(torch::nn::LinearOptions(2, 2)));
    for (const c10::ScalarType type : kCounterTypes) register_buffer(c10::toString(type), nn::Empty({3}, type));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  nn::Linear layer = nullptr;
};
MOONSHARD_MODULE(Counters);

TEST_CASE("a buffer of any type that was left out is named, until it has values") {
  RunRanks("tp=1", [](DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    std::optional<Counters> counters;
    {
      const nn::DeferInit defer;
      counters.emplace();
    }
    auto model = Parallelize(*counters, Plan(), mesh);
    const auto said = [&] { return Said(model, torch::ones({1, 2})); };
    for (const LiveParameter& p : model.applied().parameters()) {
      if (!p.is_buffer) p.tensor.detach().zero_();
    }
    bool by_memory = false;
    for (const LiveParameter& p : model.applied().parameters()) {
      if (!p.is_buffer) continue;
      const std::string text = said();
      Expect(Has(text, "'" + p.path + "'") && Has(text, "Initialize with a rule for buffers"), p.path + ": " + text);
      if (by_memory) {
        std::memset(p.tensor.data_ptr(), 0, p.tensor.nbytes());
      } else {
        p.tensor.zero_();
      }
      Expect(!Has(said(), "'" + p.path + "'"), p.path + " has values");
      by_memory = !by_memory;
    }
    Expect(said().empty(), "all have values");
  });
}

TEST_CASE("integers and bools count as values whatever they are, past the counter of writes too") {
  RunRanks("tp=1", [](DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    for (const int byte : {0x00, 0x01, 0x80, 0xFF}) {
      std::optional<Counters> counters;
      {
        const nn::DeferInit defer;
        counters.emplace();
      }
      auto model = Parallelize(*counters, Plan(), mesh);
      for (const LiveParameter& p : model.applied().parameters()) {
        const bool of_integers = c10::isIntegralType(p.tensor.scalar_type(), /*includeBool=*/true);
        const bool is_bool = p.tensor.scalar_type() == at::kBool;
        std::memset(p.tensor.data_ptr(), !of_integers ? 0 : (is_bool ? byte & 1 : byte), p.tensor.nbytes());
      }
      Expect(Said(model, torch::ones({1, 2})).empty(), "bytes of " + std::to_string(byte));
    }
  });
}

TEST_CASE("values count however they were written") {
  RunRanks("dp=2", [](DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    auto by_memory = Deferred(mesh);
    for (const LiveParameter& p : by_memory.applied().parameters()) {
      std::memset(p.tensor.data_ptr(), 0, p.tensor.nbytes());
    }
    Expect(Said(by_memory).empty(), "past the counter of writes");
    auto in_scope = Deferred(mesh);
    {
      const UnshardScope full(in_scope.applied(), UnshardScope::Writes::kKept);
      for (const at::Tensor& p : in_scope.parameters()) p.detach().fill_(std::nan(""));
    }
    Expect(Said(in_scope).empty(), "through whole parameters, and be they NaN");
  });
}

}  // namespace
}  // namespace moonshard::test
