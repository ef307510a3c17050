#include "engine/plan/plan/plan.h"

#include <tuple>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

std::string RedistributionsText(const std::vector<std::optional<Redistribution>>& redistributions) {
  std::string out = "[";
  for (const std::optional<Redistribution>& redistribution : redistributions) {
    if (&redistribution != redistributions.data()) out += ", ";
    out += redistribution ? redistribution->from.ToText() + " -> " + redistribution->to.ToText() : "-";
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

// The placement under a parameter's name, or under "*".
const Placement* Named(const std::map<std::string, Placement>& params, const std::string& parameter) {
  auto found = params.find(parameter);
  if (found == params.end()) found = params.find("*");
  return found == params.end() ? nullptr : &found->second;
}

}  // namespace

// Written out because clang 16 ends with a fault on a defaulted comparison of a class that holds itself in a vector.
// The list of names must have every member, or it does not compile.
bool Style::operator==(const Style& other) const {
  const auto members = [](const Style& style) {
    const auto& [name, params, vectors, kinds, inputs, outputs, after, lookup, route, exchange, ring, heads,
                 kind_styles, bare, missing] = style;
    return std::tie(name, params, vectors, kinds, inputs, outputs, after, lookup, route, exchange, ring, heads,
                    kind_styles, bare, missing);
  };
  return members(*this) == members(other);
}

const Style& Style::For(const std::string& kind) const {
  if (kinds.contains(kind)) return *this;
  for (const KindStyle& own : kind_styles) {
    if (own.kind == kind) return own.style;
  }
  // A bag adds up rows of a table: what fits a lookup fits it too.
  return kind == "EmbeddingBag" ? For("Embedding") : *this;
}

const Placement* Style::PlacementOf(const std::string& module_kind, const std::string& parameter, size_t dims) const {
  if (dims == 1) {
    if (const Placement* placement = Named(vectors, parameter)) return placement;
  }
  auto kind = kinds.find(module_kind);
  if (kind == kinds.end() && module_kind == "EmbeddingBag") kind = kinds.find("Embedding");
  return Named(kind == kinds.end() ? params : kind->second, parameter);
}

std::string ToText(const Route& route) {
  return std::string(route.inputs ? "inputs" : "outputs") + "[ids=" + std::to_string(route.ids) +
         ", weights=" + std::to_string(route.weights) + "]";
}

std::string ToText(const Exchange& exchange) {
  return "inputs[tokens=" + std::to_string(exchange.tokens) + ", ids=" + std::to_string(exchange.ids) +
         ", weights=" + std::to_string(exchange.weights) + "], features " + std::to_string(exchange.features) +
         (exchange.capacity > 0 ? ", capacity " + ShortestText(exchange.capacity) : "") +
         (exchange.listed > 0 ? ", listed " + std::to_string(exchange.listed) : "") + ", experts " +
         std::to_string(exchange.per_token);
}

std::string ToText(const Ring& ring) {
  return "heads " + std::to_string(ring.heads) + ", kv_heads " + std::to_string(ring.kv_heads) +
         (ring.window > 0 ? ", window " + std::to_string(ring.window) : "");
}

std::string ToText(const Style& style) {
  std::string out = style.name;
  if (!style.params.empty()) out += " params=" + ParamsText(style.params);
  if (!style.vectors.empty()) out += " vectors=" + ParamsText(style.vectors);
  for (const auto& [kind, params] : style.kinds) out += " params(" + kind + ")=" + ParamsText(params);
  if (!style.inputs.empty()) out += " inputs=" + RedistributionsText(style.inputs);
  if (!style.outputs.empty()) out += " outputs=" + RedistributionsText(style.outputs);
  if (!style.after.empty()) out += " after=[" + Join(style.after, ", ") + "]";
  if (style.lookup == Lookup::kMasked) out += " lookup=masked";
  if (style.route) out += " route=" + ToText(*style.route);
  if (style.exchange) out += " exchange=" + ToText(*style.exchange);
  if (style.ring) out += " ring=[" + ToText(*style.ring) + "]";
  if (style.heads > 0) out += " heads=" + std::to_string(style.heads);
  for (const KindStyle& own : style.kind_styles) out += " " + own.kind + "={" + ToText(own.style) + "}";
  if (style.bare) out += " bare";
  if (!style.missing.empty()) out += " missing=\"" + style.missing + "\"";
  return out;
}

std::string Plan::ToText() const {
  std::string out = "plan " + Visible(name) + " api=" + std::to_string(api) + "\n";
  for (const Rule& rule : rules) {
    const bool glob = rule.syntax == PatternSyntax::kGlob;
    const char* word = glob ? "" : rule.syntax == PatternSyntax::kRegex ? "re" : "numbered";
    out += Visible(rule.source.ToString() + ": at(" + word + "\"" + rule.pattern + "\") " +
                   (rule.parameter ? rule.parameter->ToText() : moonshard::ToText(rule.style)));
    if (rule.optional) out += " optional";
    if (rule.lenient) out += " lenient";
    if (rule.level > 0) out += " level=" + std::to_string(rule.level);
    out += "\n";
  }
  if (data_parallel) out += Visible(data_parallel->source.ToString() + ": " + moonshard::ToText(*data_parallel)) + "\n";
  for (const Recomputed& section : recompute)
    out += Visible(section.source.ToString() + ": " + moonshard::ToText(section)) + "\n";
  if (precision) out += Visible(precision->source.ToString() + ": " + moonshard::ToText(*precision)) + "\n";
  for (const KeptDType& kept : kept_dtypes) {
    out += Visible(kept.modules.source.ToString() + ": " + moonshard::ToText(kept)) + "\n";
  }
  for (const Adapter& one : adapters) out += Visible(one.source.ToString() + ": " + moonshard::ToText(one)) + "\n";
  for (const OperatorLike& one : operators)
    out += Visible(one.source.ToString() + ": " + moonshard::ToText(one)) + "\n";
  if (fallback) out += Visible(fallback_source.ToString() + ": default " + moonshard::ToText(*fallback)) + "\n";
  return out;
}

}  // namespace moonshard
