#include "engine/runtime/apply/factors.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/runtime/dtype/scalar_type.h"

namespace moonshard {
namespace {

// The factors of all adapters of one module, one parameter each. It is never called.
class AdapterImpl : public torch::nn::Module {
 public:
  AdapterImpl() : torch::nn::Module("Adapter") {}
};

at::Tensor Draw(const std::string& path, const Parameter& factor, bool looks_up) {
  const double most = 1 / std::sqrt(static_cast<double>(factor.shape.at(1)));
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(HashOf(path));
  const at::Tensor out = at::empty(factor.shape, at::kFloat);
  return looks_up ? out.normal_(0, 1, generator) : out.uniform_(-most, most, generator);
}

const at::Tensor& TensorAt(const LiveTree& live, size_t m, const std::string& name) {
  const ModuleTree::Signature& signature = live.tree->parameters(live.tree->modules()[m]);
  const auto found = std::ranges::find(signature, name, &Parameter::name);
  Check(found != signature.end(), "a parameter that an adapter needs does not exist");
  return live.tensors[m][static_cast<size_t>(found - signature.begin())];
}

// Of one name, sections with a dtype and without one may adapt different modules.
bool DeclaresDType(const CompiledPlan& plan, const std::string& path, const std::string& name) {
  return std::ranges::any_of(plan.adapted, [&](const auto& adapted) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(adapted.second)];
    return adapted.first == path && adapter.name == name && !adapter.dtype.empty();
  });
}

}  // namespace

void InjectFactors(LiveTree& live, const CompiledPlan& plan, std::optional<c10::ScalarType> deferred_type,
                   std::vector<std::function<void()>>& undo) {
  if (plan.adapted.empty()) return;
  const std::vector<Module>& modules = plan.tree->modules();
  for (size_t m = live.modules.size(); m < modules.size(); ++m) {
    const Module& module = modules[m];
    Check(module.adapts >= 0, "a module of the plan's tree that the live model does not have");
    torch::nn::Module* adapted = live.modules[static_cast<size_t>(module.adapts)];
    const at::Tensor& weight = TensorAt(live, static_cast<size_t>(module.adapts), "weight");
    const bool follows = weight.is_meta() && deferred_type && c10::elementSize(*deferred_type) > 2;
    const std::string name = module.path.substr(module.path.rfind('.') + 1);
    const bool looks_up = plan.LayoutsOf(static_cast<size_t>(module.adapts)).looks_up;
    const auto holder = std::make_shared<AdapterImpl>();
    std::vector<at::Tensor> tensors;
    for (const Parameter& factor : plan.tree->parameters(module)) {
      const std::string path = module.path + "." + factor.name;
      const bool declared = DeclaresDType(plan, modules[static_cast<size_t>(module.adapts)].path, factor.name);
      const c10::ScalarType type = follows && !declared ? *deferred_type : *ScalarTypeOf(factor.dtype);
      const at::Tensor made =
          (name == "lora_A") == looks_up ? at::zeros(factor.shape, at::kFloat) : Draw(path, factor, looks_up);
      tensors.push_back(holder->register_parameter(factor.name,
                                                   made.to(weight.is_meta() ? made.device() : weight.device(), type),
                                                   /*requires_grad=*/factor.name == plan.active_adapter()));
    }
    adapted->register_module(name, std::static_pointer_cast<torch::nn::Module>(holder));
    undo.emplace_back([adapted, name] { adapted->unregister_module(name); });
    live.modules.push_back(holder.get());
    live.hooks.push_back(nullptr);
    live.tensors.push_back(std::move(tensors));
  }
  live.tree = plan.tree;
  for (uint32_t m = 0; m < live.modules.size(); ++m) {
    for (uint32_t p = 0; p < live.tensors[m].size(); ++p) {
      at::Tensor& tensor = live.tensors[m][p];
      if (plan.Trains({m, p}) || plan.tree->At({m, p}).is_buffer || !tensor.requires_grad()) continue;
      tensor.requires_grad_(false);
      undo.emplace_back([tensor]() mutable { tensor.requires_grad_(true); });
    }
  }
}

std::shared_ptr<const LowRank> LowRankOf(const LiveTree& live, const std::string& path, const Adapter& adapter) {
  const auto factor = [&](const char* name) {
    return TensorAt(live, static_cast<size_t>(live.tree->Find(path + "." + name)), adapter.name);
  };
  return std::make_shared<const LowRank>(LowRank{factor("lora_A"), factor("lora_B"), adapter.scale(), adapter.dropout});
}

}  // namespace moonshard
