#include "engine/layout/data_flow.h"

#include <array>
#include <utility>

#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

bool IsWithin(const std::string& path, const std::string& module) {
  return module.empty() || path == module ||
         (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

std::string CallText(const FlowCall& call) {
  return call.occurrence == 0 ? call.module : call.module + "@" + std::to_string(call.occurrence);
}

}  // namespace

std::string BetweenText(uint8_t between) {
  constexpr std::array kNames = {std::pair{FlowEdge::kResidual, "residual"},
                                 std::pair{FlowEdge::kElementwise, "elementwise"},
                                 std::pair{FlowEdge::kReshape, "reshape"}, std::pair{FlowEdge::kOther, "other"}};
  std::string out;
  for (const auto& [flag, name] : kNames) {
    if ((between & flag) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return out.empty() ? "nothing" : out;
}

std::vector<FlowEdge> DataFlow::Into(const std::string& module) const {
  std::vector<FlowEdge> out;
  for (const FlowEdge& edge : edges) {
    if (edge.to < 0 || !IsWithin(calls[static_cast<size_t>(edge.to)].module, module)) continue;
    if (edge.from >= 0 && IsWithin(calls[static_cast<size_t>(edge.from)].module, module)) continue;
    out.push_back(edge);
  }
  return out;
}

std::vector<FlowEdge> DataFlow::OutOf(const std::string& module) const {
  std::vector<FlowEdge> out;
  for (const FlowEdge& edge : edges) {
    if (edge.from < 0 || !IsWithin(calls[static_cast<size_t>(edge.from)].module, module)) continue;
    if (edge.to >= 0 && IsWithin(calls[static_cast<size_t>(edge.to)].module, module)) continue;
    out.push_back(edge);
  }
  return out;
}

std::string DataFlow::FromText(const FlowEdge& edge) const {
  if (edge.from < 0) return "input " + inputs[edge.output];
  return CallText(calls[static_cast<size_t>(edge.from)]) + ":" + std::to_string(edge.output);
}

std::string DataFlow::ToText(const FlowEdge& edge) const {
  if (edge.to < 0) return "output " + outputs[edge.input];
  return CallText(calls[static_cast<size_t>(edge.to)]) + ":" + std::to_string(edge.input);
}

std::string DataFlow::ToText() const {
  std::string out;
  for (const FlowEdge& edge : edges) {
    out += Visible(FromText(edge) + " -> " + ToText(edge)) + "  " + BetweenText(edge.between) + "\n";
  }
  return out;
}

}  // namespace moonshard
