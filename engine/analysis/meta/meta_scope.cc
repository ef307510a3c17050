#include "engine/analysis/meta/meta_scope.h"

#include <c10/util/Exception.h>

#include "engine/analysis/meta/shape_functions.h"
#include "engine/core/base/check.h"
#include "engine/core/base/result.h"

namespace moonshard {
namespace {

// In which order an operator finds its shape: a shape function here (also where LibTorch has a kernel whose memory
// differs from the CPU's), LibTorch's Meta kernel, the schema alone (in-place and pointwise operators), and last the
// operator itself, which works for composites whose parts have kernels. What throws then has no shape.
MetaScope*& Innermost() {
  thread_local MetaScope* scope = nullptr;
  return scope;
}

bool HoldsMeta(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().is_meta();
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined() && tensor.is_meta()) return true;
    }
  }
  if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && tensor->defined() && tensor->is_meta()) return true;
    }
  }
  return false;
}

// A copy to another device would need values: the result stays on meta.
void StayOnMeta(const c10::OperatorHandle& op, MetaArguments& arguments) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() == "device" && !arguments[i].isNone()) arguments[i] = c10::Device(c10::kMeta);
  }
}

[[noreturn]] void NoShape(const c10::OperatorHandle& op, const std::string& why) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "the shape of an operator's results is not known on the meta device");
  d.declared = op.schema().name() + (why.empty() ? "" : ": " + why);
  d.required =
      "an operator with a Meta kernel in C++, a pointwise operator, or an operator of "
      "engine/analysis/meta/shape_functions.cc";
  throw PlanError({std::move(d)});
}

}  // namespace

MetaScope::MetaScope(const MetaOptions& options) : options_(options), outer_(Innermost()), scope_(*this) {
  Check(options.routed_share >= 0 && options.routed_share <= 1, "routed_share is outside of [0, 1]");
  RegisterMetaAttention();
  Innermost() = this;
}

MetaScope::~MetaScope() { Innermost() = outer_; }

MetaScope* MetaScope::Current() { return Innermost(); }

void MetaScope::ExpertIds(const at::Tensor& ids, int64_t first, int64_t count) {
  if (ids.is_meta()) Note(ids, {.first = first, .count = count});
}

std::optional<std::pair<int64_t, int64_t>> MetaScope::RangeOfIds(const at::Tensor& ids) {
  const Known* known = Find(ids);
  if (known == nullptr || known->share) return std::nullopt;
  return std::pair(known->first, known->count);
}

void MetaScope::Note(const at::Tensor& tensor, const Known& known) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  // A weak reference keeps the address from being used again.
  c10::weak_intrusive_ptr<c10::StorageImpl> kept(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  known_.insert_or_assign(storage, std::pair(std::move(kept), known));
}

const MetaScope::Known* MetaScope::Find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto found = known_.find(tensor.storage().unsafeGetStorageImpl());
  return found == known_.end() ? nullptr : &found->second.second;
}

// ids == number, or all numbers, of ids with a known range.
std::optional<double> MetaScope::ShareOfExpert(const MetaArguments& arguments) const {
  const Known* known = arguments[0].isTensor() ? Find(arguments.tensor(0)) : nullptr;
  if (known == nullptr || known->share) return std::nullopt;
  if (arguments[1].isTensor()) return 1.0 / static_cast<double>(arguments.tensor(1).numel());
  if (!arguments[1].isInt()) return std::nullopt;
  const int64_t expert = arguments[1].toInt() - known->first;
  return expert >= 0 && expert < known->count ? 1.0 / static_cast<double>(known->count) : 0.0;
}

MetaOptions MetaScope::OptionsFor(const at::Tensor& mask) const {
  MetaOptions options = options_;
  const Known* known = Find(mask);
  if (known != nullptr && known->share) options.routed_share = *known->share;
  return options;
}

// A mask among indices stands for the places that it names, of which there are as many as nonzero finds. False: there
// is none.
bool MetaScope::PlacesForMasks(MetaArguments& arguments) const {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isOptionalTensorList() && !arguments[i].isList()) continue;
    c10::List<std::optional<at::Tensor>> places;
    bool masks = false;
    for (const c10::IValue& value : arguments[i].toListRef()) {
      const std::optional<at::Tensor> index = value.toOptional<at::Tensor>();
      if (!index || !index->defined() || index->scalar_type() != at::kBool || !index->is_meta()) {
        places.push_back(index);
        continue;
      }
      masks = true;
      const double found = std::round(static_cast<double>(index->numel()) * OptionsFor(*index).routed_share);
      for (int64_t dim = 0; dim < index->dim(); ++dim) {
        places.push_back(at::empty({static_cast<int64_t>(found)}, index->options().dtype(at::kLong)));
      }
    }
    if (masks) arguments[i] = std::move(places);
    return masks;
  }
  return false;
}

// Operators without a meta tensor run as they are: code around the model may compute on real tensors in the same scope.
// A failure of an operator that has no Meta kernel is an error of the model and names the operator; a failure of one
// that has is LibTorch's own error (shapes that do not fit) and passes.
void MetaScope::Handle(const c10::OperatorHandle& op, c10::Stack& stack, Next& next) {
  MetaArguments arguments(stack, op.schema().arguments().size());
  bool on_meta = false;
  for (size_t i = 0; i < arguments.size() && !on_meta; ++i) on_meta = HoldsMeta(arguments[i]);
  if (!on_meta) return next.Run();
  const std::string& name = op.schema().name();
  if (const ShapeRule* rule = FindShapeRule(name)) {
    if (rule->assumes) assumptions_.insert(name);
    const bool of_mask = name == "aten::nonzero";
    return arguments.Return(rule->function(arguments, of_mask ? OptionsFor(arguments.tensor(0)) : options_));
  }
  if (name == "aten::_to_copy") StayOnMeta(op, arguments);
  if (name == "aten::index" && PlacesForMasks(arguments)) assumptions_.insert("aten::nonzero");
  const bool has_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  if (!has_kernel && ReturnBySchema(op, arguments)) return;
  const std::optional<double> share = name == "aten::eq" ? ShareOfExpert(arguments) : std::nullopt;
  try {
    next.Run();
    if (share) Note(stack.back().toTensor(), {.share = share});
  } catch (const c10::Error& error) {
    if (has_kernel) throw;
    const std::string text = error.what_without_backtrace();
    NoShape(op, text.substr(0, text.find('\n')));
  }
}

}  // namespace moonshard
