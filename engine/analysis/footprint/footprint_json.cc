#include <numeric>

#include "engine/analysis/footprint/footprint.h"
#include "engine/plan/explain/explain.h"

namespace moonshard {
namespace {

constexpr size_t kLargestInJson = 20;

JsonValue::Object ToJson(const FootprintBytes& bytes) {
  JsonValue::Object out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) out[ToString(static_cast<FootprintKind>(i))] = bytes[i];
  }
  return out;
}

JsonValue::Object ToJson(const FootprintWork& work) {
  JsonValue::Object out;
  const auto add = [&](const char* name, double value) {
    if (value > 0) out[name] = static_cast<int64_t>(value);
  };
  add("forward", work.forward);
  add("recompute", work.recompute);
  add("backward", work.backward);
  return out;
}

}  // namespace

const char* ToString(FootprintKind kind) {
  constexpr std::array<const char*, kFootprintKinds> kNames = {"parameters", "inputs",      "gathered",   "gradients",
                                                               "optimizer",  "activations", "recomputed", "temporary"};
  return kNames[static_cast<size_t>(kind)];
}

JsonValue FootprintJson(const CompiledPlan& plan, const Footprint& footprint) {
  JsonValue::Object modules;
  FootprintWork work;
  for (const FootprintModule& module : footprint.modules) {
    work.forward += module.work.forward;
    work.recompute += module.work.recompute;
    work.backward += module.work.backward;
    JsonValue::Object entry;
    if (JsonValue::Object bytes = ToJson(module.bytes); !bytes.empty()) entry["bytes"] = std::move(bytes);
    if (JsonValue::Object done = ToJson(module.work); !done.empty()) entry["work"] = std::move(done);
    if (!entry.empty()) modules[module.path] = std::move(entry);
  }
  JsonValue::Array largest;
  for (const FootprintContribution& c : LargestContributions(plan, footprint, kLargestInJson)) {
    largest.emplace_back(JsonValue::Object{{"modules", c.modules},
                                           {"operator", c.op},
                                           {"kind", ToString(c.kind)},
                                           {"bytes", c.bytes},
                                           {"count", c.count},
                                           {"advice", c.advice}});
  }
  JsonValue::Array assumptions;
  for (const std::string& op : footprint.assumptions) assumptions.emplace_back(op);
  JsonValue::Object mesh;
  for (const auto& [axis, size] : plan.mesh.Sizes()) mesh[axis] = size;
  return JsonValue::Object{
      {"format_version", kFootprintFormatVersion},
      {"plan", plan.plan->name},
      {"plan_hash", plan.Hash()},
      {"mesh", std::move(mesh)},
      {"rank", footprint.rank},
      {"tokens", JsonValue::Object{{"batch", footprint.batch}, {"sequence", footprint.sequence}}},
      {"dtype", footprint.dtype},
      {"peak", JsonValue::Object{{"bytes", footprint.peak},
                                 {"step_bytes", footprint.step_peak},
                                 {"optimizer_step_bytes", footprint.optimizer_peak},
                                 {"module", footprint.peak_module},
                                 {"operator", footprint.peak_op},
                                 {"phase", footprint.peak_phase},
                                 {"by_kind", ToJson(footprint.bytes)}}},
      {"modules", std::move(modules)},
      {"largest", std::move(largest)},
      {"work", ToJson(work)},
      {"collectives", ToJson(footprint.collectives)},
      {"assumptions", std::move(assumptions)},
  };
}

}  // namespace moonshard
