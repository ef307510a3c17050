// A weight that holds q, k and v one after the other, sharded as one matrix of 12 rows on two ranks:
//
//   rows      q0 q1 q2 q3 k0 k1 k2 k3 v0 v1 v2 v3
//   rank 0    q0 q1 q2 q3 k0 k1                       all queries, half of the keys, no value
//
// Shapes fit everywhere, the forward splits its shard into three as it splits the full features, and the numbers are
// noise.
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

namespace moonshard {
namespace {

struct FusedName {
  std::string_view name;
  bool attention;  // query, key and value; else gate and up
};

constexpr std::array kFusedNames = {
    FusedName{"W_pack", true},        FusedName{"Wqkv", true},        FusedName{"c_attn", true},
    FusedName{"gate_up_proj", false}, FusedName{"in_proj_qkv", true}, FusedName{"linear_qkv", true},
    FusedName{"qkv", true},           FusedName{"qkv_proj", true},    FusedName{"query_key_value", true},
};

const FusedName* FusedNameOf(std::string_view path) {
  const std::string_view last = path.substr(path.rfind('.') + 1);
  const auto found = std::ranges::find(kFusedNames, last, &FusedName::name);
  return found == kFusedNames.end() ? nullptr : &*found;
}

// Whether the output features are in plain shards, and leave so.
bool LeavesInPlainShards(const ModuleLayouts& layouts, const ModuleTree::Signature& signature, const MeshShape& mesh) {
  if (mesh.size(MeshAxis::kTp) == 1) return false;
  const auto weight = std::ranges::find(signature, "weight", &Parameter::name);
  if (weight == signature.end() || weight->shape.size() != 2) return false;
  const Layout& cut = layouts.params[static_cast<size_t>(weight - signature.begin())][MeshAxis::kTp];
  if (cut != Layout::Shard(0)) return false;
  if (layouts.outputs.empty() || !layouts.outputs[0]) return true;
  return layouts.outputs[0]->to[MeshAxis::kTp].is_shard() && layouts.outputs[0]->to[MeshAxis::kTp].dim == -1;
}

}  // namespace

// By names, because nothing else distinguishes a fused weight from one matrix: shapes of query, key and value may be
// anything. The check therefore covers the usual names and only plain shards; a layout with parts or heads shows that
// the author knows what the weight contains.
void CheckFusedAsOne(const CompiledPlan& plan, Diagnostics& diagnostics) {
  const ModuleTree& tree = *plan.tree;
  std::vector<bool> plain;
  for (const ModuleLayouts& layouts : plan.layouts) {
    plain.push_back(LeavesInPlainShards(layouts, tree.signatures()[layouts.signature], plan.mesh));
  }
  // Names that differ in numbers only are fused or not alike.
  std::vector<bool> looked_at(tree.class_representatives().size());
  std::set<int32_t> said;  // rules
  for (size_t m = 0; m < plan.layouts_of.size(); ++m) {
    if (!plain[plan.layouts_of[m]]) continue;
    const uint32_t path_class = tree.modules()[m].path_class;
    if (looked_at[path_class]) continue;
    const std::string& path = tree.modules()[m].path;
    const FusedName* fused = FusedNameOf(path);
    if (fused == nullptr) {
      looked_at[path_class] = true;
      continue;
    }
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    if (!said.insert(layouts.rule).second) continue;
    Diagnostic d = MakeDiagnostic(Finding::kFusedAsOne,
                                  "'" + path + "' contains the weights of " +
                                      (fused->attention ? "query, key and value" : "gate and up") +
                                      ", but is sharded as one matrix",
                                  SourceOf(plan, layouts));
    d.path = path;
    if (plan.plan->lenient) d.severity = Severity::kWarning;
    d.declared = "weight = shard(0), by style '" + layouts.style + "'";
    d.required = fused->attention ? "packed(0, { q_size, k_size, v_size }, { heads = { ... } }) if all query rows come "
                                    "first, then all key rows, then all value rows; or heads = n, with n the number of "
                                    "heads (with GQA: of groups), if the rows of each head or group are stored "
                                    "together"
                                  : "packed(0, 2) if all gate rows come before all up rows; or heads = n if they "
                                    "alternate, in n pairs of a gate row and an up row";
    d.help = fused->attention ? "transformer.attention declares this with fused = \"contiguous\" or \"interleaved\"; "
                                "or use colwise { output = replicate }, which gathers the features"
                              : "transformer.mlp declares this with fused = \"contiguous\" or \"interleaved\"; "
                                "or use colwise { output = replicate }, which gathers the features";
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace moonshard
