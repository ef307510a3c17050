// Everything here follows from the plan and the tree, which are the same on every rank, so ranks refuse together and
// none waits for another. What only a run can find (a module that cannot hold back its bias, values that differ) is
// applied_plan.cc's.
#include "engine/runtime/apply/apply_checks.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/checks.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/group_norm.h"
#include "engine/runtime/nn/own_inputs.h"

namespace moonshard {
namespace {

Diagnostic NotSupported(const std::string& message, const std::string& path, const SourceSpan& where = {}) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, message, where);
  d.path = path;
  return d;
}

// What the options of a layer say of its channels. A class of LibTorch takes its groups from them, one of moonshard::nn
// from its shard.
struct Channels {
  int64_t groups = 1;
  bool transposed = false;
  bool norm = false;
  bool counts_local_groups = false;
};

template <class Torch, class Ours>
bool FindChannels(const torch::nn::Module& module, Channels& out) {
  const auto* conv = dynamic_cast<const Torch*>(&module);
  if (conv == nullptr) return false;
  out.groups = conv->options.groups();
  out.transposed = conv->options.transposed();
  out.counts_local_groups = dynamic_cast<const Ours*>(&module) != nullptr;
  return true;
}

std::optional<Channels> ChannelsOf(const torch::nn::Module& module) {
  Channels out;
  if (const auto* norm = dynamic_cast<const torch::nn::GroupNormImpl*>(&module)) {
    out.groups = norm->options.num_groups();
    out.norm = true;
    out.counts_local_groups = dynamic_cast<const nn::GroupNormImpl*>(&module) != nullptr;
    return out;
  }
  if (FindChannels<torch::nn::Conv1dImpl, nn::Conv1dImpl>(module, out) ||
      FindChannels<torch::nn::Conv2dImpl, nn::Conv2dImpl>(module, out) ||
      FindChannels<torch::nn::Conv3dImpl, nn::Conv3dImpl>(module, out) ||
      FindChannels<torch::nn::ConvTranspose1dImpl, nn::Conv1dImpl>(module, out) ||
      FindChannels<torch::nn::ConvTranspose2dImpl, nn::Conv2dImpl>(module, out) ||
      FindChannels<torch::nn::ConvTranspose3dImpl, nn::Conv3dImpl>(module, out)) {
    return out;
  }
  return std::nullopt;
}

class Preflight {
 public:
  Preflight(const LiveTree& live, const CompiledPlan& plan) : live_(live), plan_(plan) {}

  Diagnostics Run() {
    Check(live_.tree == plan_.live_tree(), "the plan was compiled against another tree");
    for (size_t m = 0; m < live_.modules.size(); ++m) {
      const Module& module = plan_.tree->modules()[m];
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      for (size_t p = 0; p < layouts.params.size(); ++p) CheckAxes(layouts.params[p], module, m, p);
      CheckMissing(layouts, module);
      CheckUnhooked(layouts, module, m);
      CheckRing(layouts, module);
      CheckChannels(layouts, module, m);
      if (live_.hooks[m] != nullptr && live_.hooks[m]->boundary() != nullptr) {
        out_.push_back(NotSupported("a plan has been applied to this model before", module.path));
        return out_;
      }
    }
    CheckAttention();
    CheckOwnInputs();
    for (size_t i = 0; i < plan_.recomputed.size(); ++i) CheckRecomputed(i);
    return out_;
  }

 private:
  void CheckRecomputed(size_t i) {
    const std::string& path = plan_.recomputed[i];
    const int64_t m = plan_.tree->Find(path);
    Check(m >= 0 && live_.hooks[static_cast<size_t>(m)] != nullptr, "a recomputed module without a hook");
    if (live_.hooks[static_cast<size_t>(m)]->CanRunThrough()) return;
    Diagnostic d = NotSupported("calls of " + ModuleName(path) + " cannot be recomputed", path,
                                plan_.plan->recompute[static_cast<size_t>(plan_.recompute_section[i])].source);
    d.declared =
        "a forward with an argument that cannot be copied or is a non-const reference, or with no tensor in its result";
    d.required = "arguments that can be copied, by value or by const reference, and a tensor in the result";
    out_.push_back(std::move(d));
  }

  // What a style has that cannot be run yet would be left out of the step in silence.
  void CheckMissing(const ModuleLayouts& layouts, const Module& module) {
    if (layouts.missing.empty() || plan_.mesh.size(MeshAxis::kTp) == 1) return;
    out_.push_back(NotSupported("style '" + layouts.style + "' cannot be run yet: " + layouts.missing, module.path,
                                SourceOf(plan_, layouts)));
  }

  // A module that computes attention of its own would attend to this rank's tokens alone.
  void CheckRing(const ModuleLayouts& layouts, const Module& module) {
    if (!layouts.ring || plan_.mesh.size(MeshAxis::kCp) == 1) return;
    const std::string path(ParentOf(module.path));
    const int64_t m = plan_.tree->Find(path);
    const Hookable* hook = m < 0 ? nullptr : live_.hooks[static_cast<size_t>(m)];
    if (hook != nullptr && hook->SupportsRing()) return;
    Diagnostic d =
        NotSupported(ModuleName(path) + " does not compute its attention on a ring", path, SourceOf(plan_, layouts));
    d.declared = "ring of style '" + layouts.style + "' on '" + module.path + "'" +
                 (m < 0 ? "" : ", in a module of class " + plan_.tree->modules()[static_cast<size_t>(m)].kind);
    d.required =
        "context = \"ulysses\", on a mesh with one number for cp; or a class with bool SetRing(std::shared_ptr<const "
        "AttentionRing>), called "
        "through its holder";
    out_.push_back(std::move(d));
  }

  // Shards of channels: without groups an output channel takes all input channels, and with groups those of its own.
  // The tree does not show the groups, and a forward with those of all ranks may run on a shard, with other numbers.
  void CheckChannels(const ModuleLayouts& layouts, const Module& module, size_t m) {
    const int64_t ranks = plan_.mesh.size(MeshAxis::kTp);
    const ModuleTree::Signature& signature = plan_.tree->parameters(module);
    const auto weight = std::ranges::find(signature, "weight", &Parameter::name);
    if (ranks == 1 || weight == signature.end()) return;
    const Layout& cut = layouts.params[static_cast<size_t>(weight - signature.begin())][MeshAxis::kTp];
    // A class that is derived from one of LibTorch may compute anything with its groups.
    constexpr std::array<std::string_view, 7> kKinds = {
        "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "GroupNorm"};
    const bool known = std::ranges::find(kKinds, module.kind) != kKinds.end();
    if (!known || !cut.is_shard() || cut.owner >= 0 || cut.dim > 1) return;
    const std::optional<Channels> channels = ChannelsOf(*live_.modules[m]);
    if (!channels) return;
    const bool declared = !layouts.inputs.empty() && layouts.inputs[0];
    const Layout used = declared ? layouts.inputs[0]->to[MeshAxis::kTp] : Layout();
    const auto dims = static_cast<int>(weight->shape.size());
    const bool by_channels = used.is_shard() && (used.dim == 1 || used.dim == 1 - dims);
    const std::string ours = "moonshard::nn::" + module.kind;
    const auto refuse = [&](const std::string& message, const std::string& required) {
      Diagnostic d = MakeDiagnostic(Finding::kStyleDoesNotFit, ModuleName(module.path) + " " + message,
                                    SourceOf(plan_, layouts, static_cast<size_t>(weight - signature.begin())));
      d.path = module.path;
      d.declared = std::to_string(channels->groups) + " groups, weight = " + cut.ToText() +
                   (declared ? ", and an input that is used as " + used.ToText() : "");
      d.required = required;
      out_.push_back(std::move(d));
    };
    if (!channels->norm && channels->groups == 1) {
      const bool makes = !layouts.outputs.empty() && layouts.outputs[0];
      const bool of_output = cut.dim == (channels->transposed ? 1 : 0);
      const bool wrong =
          of_output ? by_channels : makes && layouts.outputs[0]->from[MeshAxis::kTp].kind != LayoutKind::kPartial;
      if (wrong) {
        refuse("combines all input channels in each output channel",
               "channels_out {} for shards of the output channels, or channels_in {} for shards of the input channels");
      }
      return;
    }
    if (channels->transposed) {
      return refuse("has groups, which a transposed convolution cannot take from a shard",
                    "a full weight, as with replicated {}; or groups = 1");
    }
    if (cut.dim != 0 || (declared && !channels->norm && !by_channels)) {
      return refuse("computes groups of channels, each from the input channels of the group",
                    "channelwise {}: the weight is shard(0), and the input is used as shards of the channels");
    }
    if (channels->groups % ranks != 0) {
      return refuse("has a number of groups that tp does not divide",
                    "a number of groups that " + std::to_string(ranks) + " divides, so that no group is on two ranks");
    }
    if (!channels->counts_local_groups) {
      refuse("is a class that computes with the groups of all ranks", ours + ", which counts those of its shard");
    }
  }

  // A class that can attend on a ring computes attention, so that its projections may not all keep the rank's tokens.
  void CheckAttention() {
    if (!plan_.context_parallel) return;
    std::map<uint32_t, size_t> own;  // by parent: its first module that keeps the rank's tokens
    std::set<uint32_t> reaches_others;
    for (size_t m = 0; m < live_.modules.size(); ++m) {
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      const uint32_t parent = plan_.tree->parents()[m];
      if (layouts.ring || ExchangesHeads(layouts)) reaches_others.insert(parent);
      if (KeepsOwnTokens(layouts)) own.try_emplace(parent, m);
    }
    for (const auto& [parent, m] : own) {
      if (parent >= live_.hooks.size() || reaches_others.contains(parent)) continue;
      if (live_.hooks[parent] == nullptr || !live_.hooks[parent]->SupportsRing()) continue;
      const std::string& path = plan_.tree->modules()[parent].path;
      Diagnostic d = NotSupported("the attention of " + ModuleName(path) + " would attend to this rank's tokens alone",
                                  path, SourceOf(plan_, plan_.LayoutsOf(m)));
      d.declared = "the rank's own tokens at '" + plan_.tree->modules()[m].path +
                   "', and neither a ring nor an exchange of heads on cp";
      d.required = "ring = { heads = ..., kv_heads = ... } in the style of the output projection";
      out_.push_back(std::move(d));
    }
  }

  // A model that takes its inputs for those of the full sequence would count positions from 0 on every rank.
  void CheckOwnInputs() {
    if (!HasOwnInputs(plan_)) return;
    std::optional<size_t> lookup;
    for (size_t m = 0; m < live_.modules.size(); ++m) {
      if (dynamic_cast<TakesOwnInputs*>(live_.modules[m]) != nullptr) return;
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      if (!lookup && layouts.looks_up && !layouts.inputs.empty() && layouts.inputs[0]) lookup = m;
    }
    Check(lookup.has_value(), "own inputs without a lookup");
    const std::string& path = plan_.tree->modules()[*lookup].path;
    Diagnostic d = NotSupported("the model needs the inputs of the full sequence on every rank of cp", path,
                                SourceOf(plan_, plan_.LayoutsOf(*lookup)));
    d.declared = "input 0 of " + ModuleName(path) + ": " + plan_.LayoutsOf(*lookup).inputs[0]->from.ToText();
    d.required =
        "inputs = \"whole\"; or a reference model, or a class derived from TakesOwnInputs "
        "(engine/runtime/nn/own_inputs.h)";
    out_.push_back(std::move(d));
  }

  // A layout alone gives a parameter its shard and changes no activation. A module around it with a rule, or modules
  // inside it (a scale for each head between two projections), can bring activations in the layout that the shard
  // needs. Without any of them the forward uses a shard on full activations, and what it makes is passed on as though
  // it were full. `shared` is right without a hook: it only sums a gradient.
  void CheckUnhooked(const ModuleLayouts& layouts, const Module& module, size_t m) {
    const auto is_sharded = [](const Placement& placement) { return placement[MeshAxis::kTp].is_shard(); };
    // In the order of their cost: the last one goes through the tree.
    if (live_.hooks[m] != nullptr || plan_.mesh.size(MeshAxis::kTp) == 1 ||
        std::ranges::none_of(layouts.params, is_sharded) || RedistributesAround(module.path) ||
        RedistributesInside(module.path)) {
      return;
    }
    const ModuleTree::Signature& signature = plan_.tree->parameters(module);
    for (size_t p = 0; p < layouts.params.size(); ++p) {
      if (!layouts.params[p][MeshAxis::kTp].is_shard()) continue;
      Diagnostic d = NotHookable(
          module, "its inputs and outputs are not redistributed to match its sharded '" + signature[p].name + "'",
          SourceOf(plan_, layouts, p));
      d.help += ", and give the module a style with inputs and outputs; or leave the parameter replicated";
      out_.push_back(std::move(d));
    }
  }

  bool Redistributes(int64_t m) const {
    if (m < 0 || live_.hooks[static_cast<size_t>(m)] == nullptr) return false;
    const ModuleLayouts& layouts = plan_.LayoutsOf(static_cast<size_t>(m));
    return !layouts.inputs.empty() || !layouts.outputs.empty();
  }

  // The walk up the path costs a lookup a component; the walk down goes over all modules, O(modules) for each module
  // that comes here, which are those with a sharded parameter and no hook: few, or an error soon.
  bool RedistributesAround(std::string_view path) const {
    while (!path.empty()) {
      path = ParentOf(path);
      if (Redistributes(plan_.tree->Find(path))) return true;
    }
    return false;
  }

  bool RedistributesInside(const std::string& path) const {
    const std::string prefix = path.empty() ? "" : path + ".";
    for (size_t m = 0; m < live_.modules.size(); ++m) {
      const std::string& other = plan_.tree->modules()[m].path;
      if (other != path && other.starts_with(prefix) && Redistributes(static_cast<int64_t>(m))) return true;
    }
    return false;
  }

  // Whether fsdp has sharded the parameter over the axis.
  bool InUnits(const Placement& placement, MeshAxis axis) const {
    const UnitSettings& settings = plan_.unit_settings;
    return settings.ranks > 1 && settings.axes.contains(axis) && placement[axis] == Layout::Shard(0);
  }

  void CheckAxes(const Placement& placement, const Module& module, size_t m, size_t p) {
    for (MeshAxis axis : kMeshAxes) {
      const bool data_parallel = plan_.plan->data_parallel && IsDataAxis(axis);
      const bool context = plan_.context_parallel && axis == MeshAxis::kCp &&
                           (placement[axis] == Layout::Shared() || InUnits(placement, axis));
      // An expert of an exchange (plan/compile/expert_parallel.h); its gradient has no sum over ep.
      const bool expert = axis == MeshAxis::kEp && placement[axis].is_shard() && plan_.exchanges_tokens();
      if (axis == MeshAxis::kTp || data_parallel || context || expert || plan_.mesh.size(axis) == 1 ||
          placement[axis] == Layout::Replicate()) {
        continue;
      }
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      const SourceSpan& where = SourceOf(plan_, layouts, p);
      const std::string name = plan_.tree->parameters(module)[p].name;
      Diagnostic d = NotSupported(
          "layouts of parameters are supported on axis tp, and under fsdp or ddp on the data-parallel axes",
          module.path + "." + name, where);
      d.declared = placement.ToText();
      d.required = (plan_.context_parallel && axis == MeshAxis::kCp ? "shared on axis " : "replicate on axis ") +
                   std::string(ToString(axis));
      out_.push_back(std::move(d));
    }
  }

  const LiveTree& live_;
  const CompiledPlan& plan_;
  Diagnostics out_;
};

}  // namespace

Diagnostics CheckApplicable(const LiveTree& live, const CompiledPlan& plan) { return Preflight(live, plan).Run(); }

}  // namespace moonshard
