#include "tests/engine/analysis/prove/planted.h"

#include <algorithm>

namespace moonshard::test {
namespace {

// The layouts of one module, its own from now on.
ModuleLayouts& OwnSteps(CompiledPlan& plan, size_t module) {
  plan.layouts.push_back(plan.LayoutsOf(module));
  plan.layouts_of[module] = static_cast<uint32_t>(plan.layouts.size() - 1);
  return plan.layouts.back();
}

Layout& Tp(Placement& placement) { return placement[MeshAxis::kTp]; }
const Layout& Tp(const Placement& placement) { return placement[MeshAxis::kTp]; }

bool OfLaterLayer(const std::string& path) {
  const size_t at = path.find("layers.");
  return at != std::string::npos && path.compare(at + 7, 2, "0.") != 0;
}

class Planter {
 public:
  explicit Planter(const CompiledPlan& plan) : plan_(plan) {}

  std::vector<Planted> All() {
    for (size_t m = 0; m < plan_.layouts_of.size(); ++m) {
      const ModuleLayouts& layouts = plan_.LayoutsOf(m);
      if (layouts.rule < 0 || OfLaterLayer(plan_.tree->modules()[m].path)) continue;
      Outputs(m, layouts);
      Inputs(m, layouts);
      Parameters(m, layouts);
    }
    return std::move(out_);
  }

 private:
  void Add(const std::string& kind, size_t m, std::function<void(ModuleLayouts&)> change) {
    out_.push_back({kind, plan_.tree->modules()[m].path,
                    [m, change = std::move(change)](CompiledPlan& plan) { change(OwnSteps(plan, m)); }});
  }

  void Outputs(size_t m, const ModuleLayouts& layouts) {
    for (size_t i = 0; i < layouts.outputs.size(); ++i) {
      if (!layouts.outputs[i]) continue;
      const Layout& from = Tp(layouts.outputs[i]->from);
      const Layout& to = Tp(layouts.outputs[i]->to);
      const auto set = [i](const Layout& new_from, const Layout& new_to) {
        return [=](ModuleLayouts& own) {
          Tp(own.outputs[i]->from) = new_from;
          Tp(own.outputs[i]->to) = new_to;
        };
      };
      if (from.kind == LayoutKind::kPartial) {
        if (to != from) Add("forward sum dropped", m, set(from, from));
        Add("forward sum forgotten: said to be whole", m, set(to.is_shard() ? to : Layout::Replicate(), to));
        Add("gathered in place of summed", m, set(Layout::Shard(-1), Layout::Replicate()));
        Add("summed to the wrong layout", m, set(from, to.is_shard() ? Layout::Replicate() : Layout::Shard(1)));
      }
      if (from.is_shard() && to == Layout::Replicate()) {
        Add("gather dropped", m, set(from, from));
        Add("summed in place of gathered", m, set(Layout::Partial(), to));
        Add("gathered along the wrong dim", m, set(Layout::Shard(1), to));
      }
      if (from.is_shard() && to == from)
        Add("shards gathered that are used as shards", m, set(from, Layout::Replicate()));
      if (from == Layout::Replicate() && to == from) Add("summed though it is whole", m, set(Layout::Partial(), to));
    }
  }

  void Inputs(size_t m, const ModuleLayouts& layouts) {
    for (size_t i = 0; i < layouts.inputs.size(); ++i) {
      if (!layouts.inputs[i]) continue;
      const Layout& from = Tp(layouts.inputs[i]->from);
      const Layout& to = Tp(layouts.inputs[i]->to);
      const auto set = [i](const Layout& new_from, const Layout& new_to) {
        return [=](ModuleLayouts& own) {
          Tp(own.inputs[i]->from) = new_from;
          Tp(own.inputs[i]->to) = new_to;
        };
      };
      if (from == Layout::Replicate() && to.kind == LayoutKind::kShared) {
        Add("backward sum dropped", m, set(from, from));
        Add("summed forward in place of backward", m, set(Layout::Partial(), Layout::Replicate()));
        Add("summed both ways", m, set(Layout::Partial(), to));
        Add("a shard taken in place of shared", m, set(from, Layout::Shard(-1)));
      }
      if (from.is_shard() && to.kind == LayoutKind::kShared) {
        Add("gather dropped", m, set(from, from));
        Add("gathered along the wrong dim", m, set(Layout::Shard(0), to));
        Add("gathered without the backward's sum", m, set(from, Layout::Replicate()));
      }
      if (from.is_shard() && to == from) Add("gathered though shards are used", m, set(from, Layout::Shared()));
      if (from == Layout::Replicate() && to == from) Add("summed though it is whole", m, set(Layout::Partial(), to));
    }
  }

  void Parameters(size_t m, const ModuleLayouts& layouts) {
    if (!layouts.after.empty()) {
      Add("bias counted on every rank", m, [](ModuleLayouts& own) { own.after.clear(); });
    }
    for (size_t p = 0; p < layouts.params.size(); ++p) {
      const Layout& layout = Tp(layouts.params[p]);
      const auto set = [p](const Layout& to) { return [=](ModuleLayouts& own) { Tp(own.params[p]) = to; }; };
      if (layout.kind == LayoutKind::kShared) Add("gradient sum missing", m, set(Layout::Replicate()));
      if (layout == Layout::Replicate()) Add("gradient summed that is whole", m, set(Layout::Shared()));
      if (layout.is_shard() && !layout.parts.empty()) Add("fused weight cut as one", m, set(Layout::Shard(layout.dim)));
      if (layout.is_plain_shard() &&
          plan_.tree->At({static_cast<uint32_t>(m), static_cast<uint32_t>(p)}).shape.size() == 2) {
        const auto& shape = plan_.tree->At({static_cast<uint32_t>(m), static_cast<uint32_t>(p)}).shape;
        if (shape[0] == shape[1] && layouts.lookup == Lookup::kPlain)
          Add("weight cut along the other dim", m, set(Layout::Shard(1 - layout.dim)));
      }
    }
  }

  const CompiledPlan& plan_;
  std::vector<Planted> out_;
};

}  // namespace

std::vector<Planted> PlantedFaults(const CompiledPlan& plan) { return Planter(plan).All(); }

}  // namespace moonshard::test
