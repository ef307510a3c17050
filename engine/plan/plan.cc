#include "engine/plan/plan.h"

#include "engine/base/text.h"

namespace moonshard {
namespace {

std::string MovesText(const std::vector<std::optional<Move>>& moves) {
  std::string out = "[";
  for (const std::optional<Move>& move : moves) {
    if (&move != moves.data()) out += ", ";
    out += move ? move->from.ToText() + " -> " + move->to.ToText() : "-";
  }
  return out + "]";
}

std::string ParamsText(const std::map<std::string, Placement>& params) {
  std::string out = "{";
  for (const auto& [name, placement] : params) {
    if (out.size() > 1) out += ", ";
    out += name + ": " + placement.ToText();
  }
  return out + "}";
}

}  // namespace

std::string ToText(const Style& style) {
  std::string out = style.name;
  if (!style.params.empty()) out += " params=" + ParamsText(style.params);
  for (const auto& [kind, params] : style.kinds) out += " params(" + kind + ")=" + ParamsText(params);
  if (!style.inputs.empty()) out += " inputs=" + MovesText(style.inputs);
  if (!style.outputs.empty()) out += " outputs=" + MovesText(style.outputs);
  if (!style.after.empty()) out += " after=[" + Join(style.after, ", ") + "]";
  if (style.lookup == Lookup::kMasked) out += " lookup=masked";
  if (style.heads > 0) out += " heads=" + std::to_string(style.heads);
  return out;
}

std::string Plan::ToText() const {
  std::string out = "plan " + name + " api=" + std::to_string(api) + "\n";
  for (const Rule& rule : rules) {
    out += rule.source.ToString() + ": at(" + (rule.syntax == PatternSyntax::kRegex ? "re" : "") + "\"" + rule.pattern +
           "\") " + (rule.parameter ? rule.parameter->ToText() : moonshard::ToText(rule.style));
    if (rule.optional) out += " optional";
    if (rule.level > 0) out += " level=" + std::to_string(rule.level);
    out += "\n";
  }
  if (fallback) out += fallback_source.ToString() + ": default " + moonshard::ToText(*fallback) + "\n";
  return out;
}

}  // namespace moonshard
