// A role is read from compiled placements and redistributions, not from the names of styles. A plan may use its own
// styles, or none at all, and still do what "colwise" means; and a style with that name may have options that change
// its meaning. So two plans with the same effect have the same export.
// The checks go from what no other system can express (an axis other than tp, heads that several ranks hold) to what
// one style covers. A module whose "weight" and "bias" are sharded in a known way is colwise or rowwise; one with other
// sharded parameters is exported by parameter; one with full parameters by its redistributions alone. What matches none
// of these is kOther with its layout as the reason: an inexact export would give wrong numbers without an error.
#include "dsl/planning/hugging_face/role.h"

#include <algorithm>

namespace moonshard {
namespace {

class RoleReader {
 public:
  RoleReader(const CompiledPlan& plan, size_t module)
      : plan_(plan),
        layouts_(plan.LayoutsOf(module)),
        signature_(plan.tree->parameters(plan.tree->modules()[module])),
        embedding_(plan.tree->modules()[module].kind == "Embedding") {}

  Role Read() {
    role_.inputs = layouts_.inputs;
    role_.outputs = layouts_.outputs;
    role_.route = layouts_.route;
    if (!CheckAxes() || !CheckReplicas()) return role_;
    const Parameter* weight = Find("weight");
    const Layout weight_layout = LayoutOf("weight");
    const bool rows = std::ranges::all_of(signature_, [&](const Parameter& p) {
      return p.is_buffer || (Shards(LayoutOf(p.name), 0) && LayoutOf(p.name).parts.empty());
    });
    if (layouts_.lookup == Lookup::kMasked && rows) return Of(Role::Kind::kVocabRowwise);
    const bool others = std::ranges::any_of(signature_, [&](const Parameter& p) {
      return p.name != "weight" && p.name != "bias" && LayoutOf(p.name) != Layout::Replicate();
    });
    if (others || (weight == nullptr && LayoutOf("bias") != Layout::Replicate())) return Bare();
    if (weight == nullptr || !weight_layout.is_shard()) return Full();
    const bool bias_cut = LayoutOf("bias").is_shard();
    if (layouts_.lookup == Lookup::kMasked)
      return Other("no style shards only some parameters of an embedding by rows");
    const auto size = weight->shape[static_cast<size_t>(weight_layout.dim)];
    if (!weight_layout.parts.empty()) {
      if (weight_layout.dim == 0 && InHalves(weight_layout, size)) return Of(Role::Kind::kPackedColwise);
      return Other("no style has weight = " + weight_layout.ToText());
    }
    if (weight->shape.size() == 2 && weight_layout.dim == (embedding_ ? 1 : 0)) return Of(Role::Kind::kColwise);
    if (weight->shape.size() == 2 && weight_layout.dim == 1 && !embedding_) {
      return bias_cut ? Other("no style has bias = " + LayoutOf("bias").ToText()) : Of(Role::Kind::kRowwise);
    }
    return Other("no style has weight = " + weight_layout.ToText());
  }

 private:
  const Parameter* Find(const std::string& name) const {
    const auto found = std::ranges::find(signature_, name, &Parameter::name);
    return found == signature_.end() ? nullptr : &*found;
  }
  Layout LayoutOf(const std::string& name) const {
    const Parameter* parameter = Find(name);
    if (parameter == nullptr) return Layout::Replicate();
    return layouts_.params[static_cast<size_t>(parameter - signature_.data())][MeshAxis::kTp];
  }
  Role Of(Role::Kind kind) {
    role_.kind = kind;
    return role_;
  }
  Role Other(std::string why) {
    role_.why = std::move(why);
    return Of(Role::Kind::kOther);
  }

  bool CheckAxes() {
    const auto only_tp = [](const std::optional<Redistribution>& move) {
      return !move || (move->from.only_tp() && move->to.only_tp());
    };
    // Such plans do not contain fsdp and ddp.
    const auto of_tp = [this](Placement placement) {
      for (const MeshAxis axis : kDataAxes) {
        const bool expert = axis == MeshAxis::kEp && placement[axis].is_shard();
        if (plan_.plan->data_parallel && !expert) placement[axis] = Layout::Replicate();
      }
      return placement.only_tp();
    };
    const bool good = std::ranges::all_of(layouts_.params, of_tp) && std::ranges::all_of(layouts_.inputs, only_tp) &&
                      std::ranges::all_of(layouts_.outputs, only_tp);
    if (!good) Other("the module is sharded on a mesh axis other than tp");
    const bool sends = layouts_.exchange && plan_.exchanges_tokens();
    if (good && sends) Other("no style sends tokens to experts on other ranks");
    return good && !sends;
  }

  // Fewer heads than ranks: other systems do not replicate them.
  bool CheckReplicas() {
    for (const Placement& placement : layouts_.params) {
      const Layout& layout = placement[MeshAxis::kTp];
      if (layout.owner >= 0) {
        Other("rank " + std::to_string(layout.owner) +
              " owns the full parameter, and no style places a parameter on one rank");
        return false;
      }
      if (layout.heads == 0 || layout.heads >= plan_.mesh.size(MeshAxis::kTp)) continue;
      Other(std::to_string(layout.heads) + " heads on " + std::to_string(plan_.mesh.size(MeshAxis::kTp)) +
            " ranks, and no style replicates heads");
      return false;
    }
    return true;
  }

  Role Full() {
    const bool summed = std::ranges::any_of(
        signature_, [&](const Parameter& p) { return LayoutOf(p.name).kind == LayoutKind::kShared; });
    const auto idle = [](const std::vector<std::optional<Redistribution>>& redistributions) {
      return std::ranges::all_of(redistributions, [](const std::optional<Redistribution>& move) {
        return !move || (move->from == move->to && !move->from[MeshAxis::kTp].is_shard());
      });
    };
    const bool still = idle(role_.inputs) && idle(role_.outputs) && !role_.route;
    if (!summed) return Of(still ? Role::Kind::kNothing : Role::Kind::kRedistributions);
    if (still) return Of(Role::Kind::kSummedGradient);
    const Layout in = role_.From(role_.inputs, 0);
    // Gradients are summed and the stream keeps its layout: sequence parallelism, where each rank computes the norm of
    // its own tokens and the gradient of the norm's weight is the sum over all tokens.
    const bool same =
        role_.To(role_.inputs, 0) == in && role_.From(role_.outputs, 0) == in && role_.To(role_.outputs, 0) == in;
    if (same && in.is_shard()) return Of(Role::Kind::kSequence);
    return Other("no style has both replicated parameters with summed gradients and these redistributions");
  }

  Role Bare() {
    for (size_t p = 0; p < signature_.size(); ++p) {
      const Layout& layout = layouts_.params[p][MeshAxis::kTp];
      if (layout == Layout::Replicate()) continue;
      role_.bare.push_back({signature_[p].name, layout, signature_[p].shape.size(), signature_[p].shape});
    }
    return Of(Role::Kind::kBare);
  }

  const CompiledPlan& plan_;
  const ModuleLayouts& layouts_;
  const ModuleTree::Signature& signature_;
  bool embedding_;
  Role role_;
};

}  // namespace

Layout Role::From(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const {
  return position < redistributions.size() && redistributions[position] ? redistributions[position]->from[MeshAxis::kTp]
                                                                        : Layout::Replicate();
}
Layout Role::To(const std::vector<std::optional<Redistribution>>& redistributions, size_t position) const {
  return position < redistributions.size() && redistributions[position] ? redistributions[position]->to[MeshAxis::kTp]
                                                                        : Layout::Replicate();
}

Role RoleOf(const CompiledPlan& plan, size_t module) { return RoleReader(plan, module).Read(); }

bool Shards(const Layout& layout, int dim) { return layout.is_shard() && layout.dim == dim; }

bool InHalves(const Layout& layout, int64_t size) {
  return layout.parts.size() == 2 && layout.parts[0].size * 2 == size && layout.parts[1].size * 2 == size;
}

}  // namespace moonshard
