// A parameter is identified by its TensorImpl, not by its storage or its name: two modules that registered one tensor
// are a tie, and sharding it once shards both. Tensors that share only storage (views of one buffer) are different
// parameters here. Undefined entries, which LibTorch keeps for an absent bias, are passed over; the order of the rest
// is the order of registration, which is the same on every rank because every rank runs the same constructor.
#include "engine/runtime/apply/live_tree.h"

#include <map>

#include <torch/nn/module.h>

#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/nn/kind.h"

namespace moonshard {
namespace {

class Reader {
 public:
  Result<LiveTree> Read(torch::nn::Module& root) {
    for (const auto& entry : root.named_modules()) AddModule(entry.key(), *entry.value());
    for (std::vector<ParamRef>& same : uses_) {
      if (same.size() > 1) tree_->AddTie(std::move(same));
    }
    if (const auto* hook = dynamic_cast<const Hookable*>(&root); hook != nullptr) hook->AddKnowledge(*tree_);
    out_.tree = tree_;
    if (!diagnostics_.empty()) return std::move(diagnostics_);
    return std::move(out_);
  }

 private:
  // One module: its own parameters and buffers as a signature, the tensors beside it in the same order, and whether it
  // is Hookable. Reading goes on after an error, so that one run reports all of them.
  void AddModule(const std::string& path, torch::nn::Module& module) {
    ModuleTree::Signature signature;
    std::vector<at::Tensor> tensors;
    const auto index = static_cast<uint32_t>(out_.modules.size());
    const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
      if (!tensor.defined()) return;  // an optional bias that is not there
      const std::optional<DType> dtype = DTypeOf(tensor.scalar_type());
      if (!dtype) {
        Diagnostic d = MakeDiagnostic(
            Finding::kNotSupported,
            "a tensor of dtype " + std::string(c10::toString(tensor.scalar_type())) + " is not supported in a plan");
        d.path = (path.empty() ? "" : path + ".") + name;
        diagnostics_.push_back(std::move(d));
        return;
      }
      const ParamRef ref{index, static_cast<uint32_t>(signature.size())};
      const auto [entry, fresh] = number_of_.try_emplace(tensor.unsafeGetTensorImpl(), uses_.size());
      if (fresh) uses_.emplace_back();
      uses_[entry->second].push_back(ref);
      signature.push_back({name, tensor.sizes().vec(), *dtype, is_buffer});
      tensors.push_back(tensor);
    };
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) add(entry.key(), entry.value(), false);
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) add(entry.key(), entry.value(), true);
    auto* hook = dynamic_cast<Hookable*>(&module);
    if (hook != nullptr && !hook->StaleParameter().empty()) {
      const std::string name(hook->StaleParameter());
      Diagnostic d =
          MakeDiagnostic(Finding::kStaleMember, "member '" + name + "' of '" + path +
                                                    "' is not the tensor that is registered as '" + name + "'");
      d.path = path;
      d.declared = "two tensors: forward uses the member, optimizers and plans use the registered tensor";
      d.required = "the same tensor as member and as registered tensor";
      if (name != "weight") {
        d.help =
            "do not assign to the member; in a class of your own, pass the tensor to the constructor and register it "
            "there: " +
            name + " = register_parameter(\"" + name + "\", given)";
      } else if (nn::KindOf(module) == "Linear") {
        d.help = "call TieWeight(tensor) of this moonshard::nn::Linear instead of the assignment";
      } else {
        d.help =
            "do not assign to the member. To share one tensor: if the other layer is a moonshard::nn::Linear, call its "
            "TieWeight(weight); in a class of your own, pass the tensor to the constructor and register it there: "
            "weight "
            "= register_parameter(\"weight\", given)";
      }
      diagnostics_.push_back(std::move(d));
    }
    const auto parent = by_path_.find(path.empty() ? "?" : std::string(ParentOf(path)));
    tree_->Add(path, nn::KindOf(module), std::move(signature), hook != nullptr,
               nn::OriginOf(module, parent == by_path_.end() ? nullptr : parent->second));
    by_path_[path] = &module;
    out_.modules.push_back(&module);
    out_.hooks.push_back(hook);
    out_.tensors.push_back(std::move(tensors));
  }

  std::shared_ptr<ModuleTree> tree_ = std::make_shared<ModuleTree>();
  LiveTree out_;
  Diagnostics diagnostics_;
  // Addresses only tell tensors apart here; the order of ties is that of their first use.
  std::map<const void*, size_t> number_of_;
  std::vector<std::vector<ParamRef>> uses_;
  std::map<std::string, const torch::nn::Module*> by_path_;  // those before this one, a parent before its children
};

}  // namespace

Result<LiveTree> ReadLiveTree(torch::nn::Module& root) { return Reader().Read(root); }

}  // namespace moonshard
