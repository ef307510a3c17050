#include "engine/graph/added_after.h"

#include <algorithm>
#include <string>
#include <vector>

namespace moonshard {

AddedAfter AddedAfterOf(const ExportedProgram& program, const CompiledPlan& plan) {
  std::map<ParamRef, uint32_t> value_of;
  for (const ProgramTensor& tensor : program.tensors) {
    ParamRef ref;
    if (tensor.value < 0 || !plan.tree->FindParameter(tensor.name, &ref)) continue;
    value_of.emplace(ref, static_cast<uint32_t>(tensor.value));
  }
  for (const std::vector<ParamRef>& same : plan.tree->ties()) {
    const auto known = std::ranges::find_if(same, [&](const ParamRef& one) { return value_of.contains(one); });
    if (known == same.end()) continue;
    for (const ParamRef& one : same) value_of.emplace(one, value_of.at(*known));
  }
  auto unread = static_cast<uint32_t>(program.values.size());
  for (const ProgramTensor& tensor : program.tensors) {
    ParamRef ref;
    if (!plan.tree->FindParameter(tensor.name, &ref) || value_of.contains(ref)) continue;
    value_of.emplace(ref, unread++);
  }
  AddedAfter out;
  for (const auto& [ref, value] : value_of) {
    const ModuleLayouts& layouts = plan.LayoutsOf(ref.module);
    const bool moves = !layouts.outputs.empty() && layouts.outputs[0] &&
                       layouts.outputs[0]->from[MeshAxis::kTp] != layouts.outputs[0]->to[MeshAxis::kTp];
    const std::string& name = plan.tree->At(ref).name;
    if (moves && std::ranges::find(layouts.after, name) != layouts.after.end()) out[ref.module].emplace(value, ref);
  }
  return out;
}

}  // namespace moonshard
