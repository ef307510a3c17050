#include <algorithm>
#include <map>
#include <set>

#include "dsl/planning/hugging_face/export.h"
#include "dsl/planning/hugging_face/findings.h"
#include "dsl/planning/hugging_face/role.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"

namespace moonshard {
namespace {

bool Is(const Layout& layout, LayoutKind kind) { return layout.kind == kind; }

// The name of a style, or the reason why there is none.
struct Name {
  std::string style;
  std::string why;
};

Name NoStyleFor(const char* what, const Layout& from, const Layout& to) {
  return {"", std::string("no Hugging Face style has this ") + what + ": " + from.ToText() + " -> " + to.ToText()};
}

Name Colwise(const Role& role, bool packed) {
  const Layout in = role.From(role.inputs, 0);
  const Layout from = role.From(role.outputs, 0);
  const Layout to = role.To(role.outputs, 0);
  if (!Is(in, LayoutKind::kReplicate)) return NoStyleFor("input", in, role.To(role.inputs, 0));
  const bool stays = role.outputs.empty() || (from == to && from.is_shard());
  if (packed) return stays ? Name{"packed_colwise", ""} : NoStyleFor("output", from, to);
  if (stays) return {"colwise", ""};
  return Is(to, LayoutKind::kReplicate) ? Name{"colwise_gather_output", ""} : NoStyleFor("output", from, to);
}

Name Rowwise(const Role& role, bool embedding) {
  const Layout in = role.From(role.inputs, 0);
  const Layout from = role.From(role.outputs, 0);
  const Layout to = role.To(role.outputs, 0);
  if (!Is(from, LayoutKind::kPartial) || !Is(to, LayoutKind::kReplicate)) return NoStyleFor("output", from, to);
  if (embedding) {
    return Is(in, LayoutKind::kReplicate) ? Name{"embedding_rowwise", ""}
                                          : NoStyleFor("input", in, role.To(role.inputs, 0));
  }
  if (Is(in, LayoutKind::kReplicate)) return {"rowwise_split_input", ""};
  return Shards(in, -1) ? Name{"rowwise", ""} : NoStyleFor("input", in, role.To(role.inputs, 0));
}

// The style of a route: of a router's results, or of what experts are given.
Name Routed(const Role& role) {
  const Route& route = *role.route;
  const bool router = !route.inputs && route.weights == 1 && route.ids == 2 && role.inputs.empty();
  if (router && Is(role.To(role.outputs, 1), LayoutKind::kShared)) return {"ep_router", ""};
  const bool experts = route.inputs && route.ids == 1 && route.weights == 2;
  if (experts && Is(role.To(role.inputs, 0), LayoutKind::kShared) &&
      Is(role.From(role.outputs, 0), LayoutKind::kPartial)) {
    return {"megamoe_experts", ""};
  }
  return {"", "no Hugging Face style has this route: " + ToText(route)};
}

// Redistributions around parameters that are full or have keys of their own.
Name Redistributions(const Role& role) {
  if (role.route) return Routed(role);
  if (role.To(role.outputs, 0).is_shared_last()) return {"mla_kv_a_proj", ""};
  if (Is(role.From(role.inputs, 0), LayoutKind::kShared) && Is(role.To(role.inputs, 0), LayoutKind::kPartial)) {
    return {"moe_identity_expert", ""};
  }
  const auto used = [](const std::vector<std::optional<Redistribution>>& redistributions) {
    return std::ranges::any_of(redistributions, [](const auto& move) { return move && move->from != move->to; });
  };
  const bool sums = Is(role.From(role.outputs, 0), LayoutKind::kPartial) &&
                    Is(role.To(role.outputs, 0), LayoutKind::kReplicate) && role.outputs.size() == 1;
  if (!used(role.inputs)) {
    if (!used(role.outputs)) return {};
    return sums ? Name{"all_reduce", ""} : NoStyleFor("output", role.From(role.outputs, 0), role.To(role.outputs, 0));
  }
  const auto shares = [&](size_t position) {
    return Is(role.From(role.inputs, position), LayoutKind::kReplicate) &&
           Is(role.To(role.inputs, position), LayoutKind::kShared);
  };
  const bool middle = role.inputs.size() > 1 && role.inputs[1] && role.inputs[1]->from != role.inputs[1]->to;
  if (sums && shares(0) && (role.inputs.size() == 1 || (role.inputs.size() == 3 && !middle && shares(2)))) {
    return {"moe_tp_experts", ""};
  }
  return NoStyleFor("input", role.From(role.inputs, 0), role.To(role.inputs, 0));
}

// Full experts on each rank: one style applies to all parameters of a module, whatever their dims.
bool CutsExperts(const Role& role) {
  return std::ranges::any_of(role.bare, [](const Role::Bare& bare) { return bare.dims > 2 && Shards(bare.layout, 0); });
}

// The style of a bare parameter by its key. transformers applies a style's dims to the last two dims of the parameter,
// whatever is in front of them: colwise is the last but one, rowwise the last.
Name OfBare(const Role& role, const Role::Bare& bare) {
  const Layout& layout = bare.layout;
  const int last = static_cast<int>(bare.dims) - 1;
  if (!layout.is_shard()) {
    return {"", "a key of a tp_plan that names a parameter cannot declare a summed gradient"};
  }
  const int64_t size = bare.shape[static_cast<size_t>(layout.dim)];
  if (!layout.parts.empty()) {
    if (!InHalves(layout, size)) return {"", "no Hugging Face style shards " + layout.ToText()};
    if (layout.dim == last - 1) return {"packed_colwise", ""};
    return layout.dim == last ? Name{"packed_rowwise", ""}
                              : Name{"", "no Hugging Face style shards " + layout.ToText()};
  }
  if (layout.dim == 0 && CutsExperts(role)) return {"grouped_gemm", ""};
  if (layout.dim == std::max(last - 1, 0)) return {"colwise", ""};
  if (layout.dim == last) return {"rowwise", ""};
  return {"", "no Hugging Face style shards " + layout.ToText()};
}

class Exporter {
 public:
  explicit Exporter(const CompiledPlan& plan) : plan_(plan), findings_(plan) {}

  ExportedPlan Run() {
    findings_.LeaveOutAdapters();
    for (size_t m = 0; m < plan_.tree->modules().size(); ++m) {
      if (!plan_.LayoutsOf(m).factors) Add(m);
    }
    ReportSharers();
    JsonValue::Object table;
    for (const auto& [key, entry] : entries_) {
      if (!entry.style.empty() && !left_out_.contains(entry.of)) table[key] = entry.style;
    }
    return {WriteJson(table, 2) + "\n", findings_.Take()};
  }

 private:
  struct Entry {
    std::string style;
    std::string of;  // the key of the module, which the keys of its parameters begin with
  };

  void Add(size_t m) {
    const Module& module = plan_.tree->modules()[m];
    const Role role = RoleOf(plan_, m);
    const bool has_parameters = !plan_.tree->parameters(module).empty();
    Name name;
    // What the layouts do not fully determine is a Hugging Face style by its name.
    if (!plan_.LayoutsOf(m).missing.empty()) {
      EnterBare(m, role);
      Enter(m, module.path, {plan_.LayoutsOf(m).style, ""});
      return;
    }
    switch (role.kind) {
      case Role::Kind::kNothing: break;
      case Role::Kind::kColwise: name = Colwise(role, false); break;
      case Role::Kind::kPackedColwise: name = Colwise(role, true); break;
      case Role::Kind::kRowwise: name = Rowwise(role, false); break;
      case Role::Kind::kVocabRowwise: name = Rowwise(role, true); break;
      case Role::Kind::kSequence:
        name = Shards(role.From(role.inputs, 0), 1)
                   ? Name{"sequence_parallel", ""}
                   : Name{"", "sequence_parallel of transformers requires shards along dim 1"};
        break;
      case Role::Kind::kSummedGradient:
        name = {"replicated_with_grad_allreduce", ""};
        findings_.Warn(m,
                       "transformers sums the accumulated gradient in every backward, which is wrong with several "
                       "micro-batches");
        break;
      case Role::Kind::kRedistributions: name = Redistributions(role); break;
      case Role::Kind::kBare:
        EnterBare(m, role);
        name = Redistributions(role);
        break;
      case Role::Kind::kOther: name.why = role.why; break;
    }
    if (has_parameters || !name.style.empty() || !name.why.empty()) Enter(m, module.path, name);
  }

  void EnterBare(size_t m, const Role& role) {
    const std::string& path = plan_.tree->modules()[m].path;
    for (const Role::Bare& bare : role.bare) Enter(m, (path.empty() ? "" : path + ".") + bare.name, OfBare(role, bare));
  }

  // A key with stars covers the modules of all layers, also the replicated ones: an entry without a style keeps the
  // key, so that a layer with a style and one without are found to differ. Each key is reported once.
  void Enter(size_t m, const std::string& path, const Name& name) {
    const std::string& module = plan_.tree->modules()[m].path;
    const std::string of = NumberedKeyOf(module);
    if (!name.why.empty()) {
      findings_.LeaveOut(m, name.why);
      left_out_.try_emplace(of, "the key '" + of + "' covers all layers, and '" + module + "' cannot be exported");
      return;
    }
    if (!name.style.empty()) styled_.insert(m);
    const std::string key = NumberedKeyOf(path);
    const auto [found, fresh] = entries_.try_emplace(key, Entry{name.style, of});
    if (fresh || found->second.style == name.style) return;
    const auto text = [](const std::string& style) { return style.empty() ? "replicated" : style; };
    const std::string why = "the key '" + key +
                            "' covers all layers, but their styles differ: " + text(found->second.style) + " and " +
                            text(name.style);
    if (left_out_.try_emplace(of, why).second) findings_.LeaveOut(m, why);
  }

  // A module without some of its entries would be another module (an all-reduce of what is not sharded), and a key
  // names the modules of all layers: where one of them cannot be exported, none of them has an entry.
  void ReportSharers() {
    for (const size_t m : styled_) {
      const auto found = left_out_.find(NumberedKeyOf(plan_.tree->modules()[m].path));
      if (found != left_out_.end() && !findings_.LeavesOut(m)) findings_.LeaveOut(m, found->second);
    }
  }

  const CompiledPlan& plan_;
  ExportFindings findings_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> left_out_;  // keys of modules, with the reason for modules that share the key
  std::set<size_t> styled_;                      // modules of which an entry has a style
};

}  // namespace

// From a compiled plan, not from its rules: the keys of a tp_plan are paths with * for numbers, so modules are grouped
// by their path with numbers replaced, and each group needs one style. A group whose members differ cannot be
// expressed: it is reported and has no entries.
ExportedPlan ExportHuggingFace(const CompiledPlan& plan) { return Exporter(plan).Run(); }

}  // namespace moonshard
