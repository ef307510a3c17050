// One step of a recorded model in front of the checker.
#pragma once

#include "engine/analysis/prove/type_scope.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"

namespace moonshard::test {

// What an operator threw ends the step; the proof says so.
// The first `length` tokens of each row; 0: all.
inline Proof ProveStep(const ShardedModel& sharded, const NamedTensors& inputs, const TypeOptions& options = {},
                       int64_t length = 0) {
  const auto cut = [&](const at::Tensor& tensor) {
    return length > 0 ? tensor.narrow(1, 0, length).clone() : tensor.clone();
  };
  const at::Tensor labels = cut(inputs.at("labels"));
  const at::Tensor ids = cut(inputs.at("input_ids"));
  TypeScope scope(*sharded.applied, options);
  scope.Input(labels);
  scope.Input(ids);
  try {
    const at::Tensor loss = CausalLmLoss(sharded.model.forward(ids, std::nullopt, std::nullopt), labels);
    scope.Loss(loss);
    loss.backward();
  } catch (const c10::Error& error) {
    scope.Stopped(error.what_without_backtrace());
  }
  return scope.Finish();
}

inline Proof ProveAlone(const Setup& setup, const std::string& mesh, int64_t rank,
                        const std::function<void(CompiledPlan&)>& change = {}, int64_t length = 0) {
  const ShardedModel sharded = Load(setup, DeviceMesh::Recording(MeshShape::Parse(mesh).ValueOrThrow(), rank), change);
  return ProveStep(sharded, ReadTensors(setup.folder / "inputs_1.safetensors"), {}, length);
}

// On tp=1 and on the mesh.
inline Proof ProveAtTwoSizes(const Setup& setup, const std::string& mesh, int64_t rank, int64_t length = 0) {
  const NamedTensors inputs = ReadTensors(setup.folder / "inputs_1.safetensors");
  return ProveAtTwoSizes(
      MeshShape::Parse(mesh).ValueOrThrow(),
      [&](const DeviceMesh& at, const TypeOptions& options) {
        return ProveStep(Load(setup, at), inputs, options, length);
      },
      {}, rank);
}

inline std::string ToText(const Proof& proof) {
  std::string out;
  for (const TypeFault& fault : proof.faults) {
    out += "  " + fault.path + (fault.backward ? " (backward): " : ": ") + fault.what + ": " + fault.message;
    if (!fault.declared.empty()) out += " declared " + fault.declared + ", got " + fault.got;
    if (!fault.since.empty()) out += ", since " + fault.since;
    out += " x" + std::to_string(fault.count) + "\n";
  }
  for (const auto& [what, unproven] : proof.unproven) {
    out += "  unproven: " + what + " x" + std::to_string(unproven.count) + ", first in " + unproven.first + "\n";
  }
  for (const std::string& what : proof.sizes_not_compared) out += "  not compared: " + what + "\n";
  for (const Assumption& what : proof.assumptions) out += "  taken: " + what.ToText() + "\n";
  return out;
}

}  // namespace moonshard::test
