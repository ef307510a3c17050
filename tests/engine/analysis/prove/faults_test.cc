// Faults planted in the plans of the reference architectures are found, at the module that has them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <iostream>
#include <map>

#include "tests/engine/analysis/prove/planted.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

std::string ParentOf(const std::string& module) { return module.substr(0, module.rfind('.') + 1); }

// The module itself, what uses its result (around it, or beside it), or what is said of where the operand comes from.
bool Names(const TypeFault& fault, const std::string& module) {
  return fault.path == module || fault.path.starts_with(module + ".") || module.starts_with(fault.path + ".") ||
         (!fault.path.empty() && ParentOf(fault.path) == ParentOf(module)) ||
         fault.since.find(module) != std::string::npos;
}

TEST_CASE("planted faults are found where they are") {
  int64_t planted = 0;
  int64_t found = 0;
  int64_t elsewhere = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;
  std::string misses;
  for (const char* name :
       {"llama_gqa", "llama_bias", "qwen2_tied", "qwen3_head_dim12", "gemma3_softcap", "phi3_gqa", "phi_qknorm",
        "mixtral", "baichuan2", "decilm", "ministral3_yarn", "mistral_window8", "qwen3_moe"}) {
    for (const bool sequence_parallel : {false, true}) {
      const Setup setup{std::filesystem::path(SourcePath("tests/parity")) / name, 2, sequence_parallel, false};
      std::vector<Planted> faults;
      ProveAlone(setup, "tp=2", 0, [&](CompiledPlan& plan) { faults = PlantedFaults(plan); });
      REQUIRE(faults.size() > 10);
      for (const Planted& fault : faults) {
        ++planted;
        auto& kind = kinds[fault.kind];
        ++kind.first;
        std::string text;
        bool right = false;
        bool any = false;
        try {
          const Proof proof = ProveAlone(setup, "tp=2", 0, fault.plant);
          any = !proof.faults.empty();
          for (const TypeFault& one : proof.faults) right = right || Names(one, fault.module);
          text = ToText(proof);
        } catch (const PlanError& error) {
          any = right = true;  // refused before the step
        } catch (const std::exception& error) {
          text = std::string("  threw: ") + error.what() + "\n";
        }
        if (right) {
          ++found;
          ++kind.second;
        } else {
          elsewhere += any ? 1 : 0;
          misses += setup.Name() + ": " + fault.kind + " at " + fault.module + "\n" + text;
        }
      }
    }
  }
  std::cout << planted << " faults planted, " << found << " found at their module, " << elsewhere << " elsewhere\n";
  for (const auto& [kind, counts] : kinds)
    std::cout << "  " << kind << ": " << counts.second << " of " << counts.first << "\n";
  std::cout << misses;
  CHECK(planted >= 1484);
  CHECK(found + elsewhere == planted);
  CHECK(elsewhere * 100 <= planted);
}

const Diagnostic* Find(const Diagnostics& all, Finding finding) {
  const auto found = std::ranges::find(all, finding, &Diagnostic::finding);
  return found == all.end() ? nullptr : &*found;
}

// What is said of a fault planted in a recorded model's plan.
Diagnostics Said(const std::string& model, const std::string& kind, const std::string& module) {
  const Setup setup{std::filesystem::path(SourcePath("tests/parity")) / model, 2, false, false};
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow());
  const ShardedModel sharded = Load(setup, mesh, [&](CompiledPlan& plan) {
    const std::vector<Planted> faults = PlantedFaults(plan);
    const auto fault =
        std::ranges::find_if(faults, [&](const Planted& one) { return one.kind == kind && one.module == module; });
    if (fault != faults.end()) fault->plant(plan);
  });
  return ToDiagnostics(ProveStep(sharded, ReadTensors(setup.folder / "inputs_1.safetensors")), sharded.applied->plan());
}

TEST_CASE("findings of a proof name the module, the line, and what to do") {
  SECTION("kIllTyped") {
    const Diagnostics said = Said("llama_bias", "bias counted on every rank", "model.layers.0.mlp.down_proj");
    const Diagnostic* d = Find(said, Finding::kIllTyped);
    REQUIRE(d != nullptr);
    CHECK(d->path == "model.layers.0.mlp.down_proj");
    CHECK(d->where.known());
    CHECK(d->help.find("after = { \"bias\" }") != std::string::npos);
  }
  SECTION("kLayoutNotAsDeclared") {
    const Diagnostics said =
        Said("llama_gqa", "forward sum forgotten: said to be whole", "model.layers.0.self_attn.o_proj");
    const Diagnostic* d = Find(said, Finding::kLayoutNotAsDeclared);
    REQUIRE(d != nullptr);
    CHECK(d->path == "model.layers.0.self_attn.o_proj");
    CHECK(d->declared == "replicate");
    CHECK(d->required == "partial");
  }
  SECTION("a region that gets another layout than it requires") {
    const Setup setup{std::filesystem::path(SourcePath("tests/parity/llama_gqa")), 2, false, false};
    const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow()));
    TypeFault fault;
    fault.kind = TypeFault::Kind::kRegion;
    fault.what = "the loss";
    fault.declared = "replicate";
    fault.got = "partial";
    Proof proof;
    proof.faults.push_back(fault);
    const Diagnostics said = ToDiagnostics(proof, sharded.applied->plan());
    REQUIRE(said.size() >= 1);
    CHECK(said.front().message == "the loss is partial, but must be replicate");
    CHECK(said.front().declared == "partial");
    CHECK(said.front().required == "replicate");
  }
  SECTION("kWrongGradient and kUnproven") {
    const Setup setup{std::filesystem::path(SourcePath("tests/parity/llama_gqa")), 2, false, false};
    const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow()));
    Proof proof;
    TypeFault fault;
    fault.kind = TypeFault::Kind::kGradient;
    fault.path = "model.norm.weight";
    fault.backward = true;
    fault.declared = "replicate";
    fault.got = "partial";
    proof.faults.push_back(fault);
    proof.unproven["mylib::rotate: no rule"] = {3, "model.norm"};
    const Diagnostics said = ToDiagnostics(proof, sharded.applied->plan());
    const Diagnostic* gradient = Find(said, Finding::kWrongGradient);
    REQUIRE(gradient != nullptr);
    CHECK(gradient->where.known());
    CHECK(gradient->help.find("declare the parameter shared") != std::string::npos);
    const Diagnostic* unproven = Find(said, Finding::kUnproven);
    REQUIRE(unproven != nullptr);
    CHECK(unproven->message == "could not be checked: mylib::rotate: no rule (3 times)");
  }
}

}  // namespace
}  // namespace moonshard::test
