// Hooked: makes the calls of a module class interceptable by a plan.
//
//   struct BlockImpl : torch::nn::Cloneable<BlockImpl> { ... torch::Tensor forward(torch::Tensor x); };
//   MOONSHARD_MODULE(Block);                  // in place of TORCH_MODULE(Block)
//
// These calls all pass through the hook: block(x), block->forward(x), and calls by torch::nn::Sequential and AnyModule.
// Exceptions are listed below. Default arguments of forward work. Without a plan a call costs one predictable branch.
// With a plan (apply/ calls Hookable::SetBoundary), a call passes the argument tensors through the boundary's steps
// before forward, runs forward, and passes the results through the steps after forward. tensor_slots.h lists the types
// in which tensors are found. Tensor arguments are copied as handles; other arguments are passed on unchanged.
//
// An Impl may define the following functions. The functions of Hookable with the same names then call them:
//
//   bool HoldBack(std::string_view parameter);                        leave a parameter out of forward
//   void ReleaseBack(std::string_view parameter);                     use it again
//   bool SetLocalRows(int64_t first, int64_t rows, int64_t total);    a lookup in some rows only
//   bool SetLowRank(std::shared_ptr<const LowRank> term);             add scale B A to the weight (an adapter)
//   bool SetRing(std::shared_ptr<const AttentionRing> ring);          attend over the tokens of all ranks of an axis
//
// In C++ these calls bypass the hook: forward called through the class without hooks
// (`module->as<BlockImpl>()->forward(x)`, `BlockImpl::forward` in a derived class), and an Impl that is stored by
// itself (`torch::nn::Sequential(BlockImpl(...))`, std::make_shared<BlockImpl>). calls() then stays at zero.
//
// forward must be one plain member function (not overloaded, not a template). It must take tensors by value or by const
// reference and return them by value.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "engine/core/base/check.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/nn/signature.h"
#include "engine/runtime/nn/tensor_slots.h"

namespace moonshard::nn {

namespace detail {

// The type in which an argument is held between Enter and forward: a copy of the handles for an argument that contains
// tensors; any other reference stays a reference.
template <class Argument>
using Held = std::conditional_t<std::is_lvalue_reference_v<Argument> && !kHoldsTensors<std::remove_cvref_t<Argument>>,
                                Argument, std::remove_cvref_t<Argument>>;

// The type in which an argument is kept for a second run of the call: a const reference becomes a copy too.
template <class Argument>
using Kept =
    std::conditional_t<std::is_lvalue_reference_v<Held<Argument>> && std::is_const_v<std::remove_reference_t<Argument>>,
                       std::remove_cvref_t<Argument>, Held<Argument>>;
template <class Argument>
inline constexpr bool kCanKeep =
    !std::is_lvalue_reference_v<Kept<Argument>> && std::is_copy_constructible_v<Kept<Argument>>;

template <class Argument>
inline constexpr bool kIsMutableTensorReference =
    std::is_lvalue_reference_v<Argument> && !std::is_const_v<std::remove_reference_t<Argument>> &&
    kHoldsTensors<std::remove_cvref_t<Argument>>;

// Throws PlanError, because the clone of a sharded module would hold shards and have no plan.
[[noreturn]] void RefuseToCloneSharded();
// Throw PlanError kUnshardedFunction. The error names the functions that support a sharded model.
[[noreturn]] void RefuseToSaveSharded();
[[noreturn]] void RefuseToLoadSharded();
// Throws PlanError, because Impl inherits a clone() that returns an object of another class.
[[noreturn]] void RefuseToCloneAsBase(const torch::nn::Module& module);

// Whether `module` has registered a tensor other than `member` under `name`.
bool IsStale(const torch::nn::Module& module, const char* name, const at::Tensor& member);

}  // namespace detail

template <detail::HasOneForward Impl, class Arguments = typename detail::ForwardSignature<Impl>::Arguments>
class Hooked;

template <detail::HasOneForward Impl, class... Arguments>
class Hooked<Impl, detail::Types<Arguments...>>
    : public Impl,
      public Hookable,
      public detail::ShortForwards<Hooked<Impl, detail::Types<Arguments...>>, Impl, detail::Types<>,
                                   detail::Types<Arguments...>> {
  using Shorter = detail::ShortForwards<Hooked, Impl, detail::Types<>, detail::Types<Arguments...>>;
  template <class, class, class, class>
  friend class detail::ShortForwards;

 public:
  using Result = typename detail::ForwardSignature<Impl>::Result;
  static_assert(!(detail::kIsMutableTensorReference<Arguments> || ...),
                "forward takes a tensor by non-const reference, and a plan cannot replace such an argument: take the "
                "tensor by value or by const reference");
  static_assert(
      !std::is_reference_v<Result> || !detail::kHoldsTensors<std::remove_cvref_t<Result>>,
      "forward returns a reference to tensors, and a plan cannot replace such a result: return the tensors by value");

  using Impl::Impl;
  Hooked() requires std::is_default_constructible_v<Impl>
  = default;
  // A module with the same parameters and children, without a plan.
  explicit Hooked(const Impl& other) : Impl(other) {}

  Result forward(Arguments... arguments) { return Call(std::forward<Arguments>(arguments)...); }
  Result forward(Arguments... arguments) const requires(detail::ForwardSignature<Impl>::kIsConst) {
    return const_cast<Hooked&>(*this).Call(std::forward<Arguments>(arguments)...);
  }
  using Shorter::forward;

  // Returns a deep copy, which is hooked too. Throws PlanError if a plan has sharded this module.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override {
    if (boundary_ != nullptr) detail::RefuseToCloneSharded();
    std::shared_ptr<torch::nn::Module> copy = Impl::clone(device);
    if constexpr (std::is_copy_constructible_v<Impl>) {
      if (const auto* impl = dynamic_cast<const Impl*>(copy.get())) return std::make_shared<Hooked>(*impl);
    }
    detail::RefuseToCloneAsBase(*this);
  }

  // LibTorch's archives (torch::save, torch::load) do not support layouts. Both functions throw PlanError
  // kUnshardedFunction if a plan has sharded this module: save would write this rank's shards under the names of full
  // tensors, and load would replace shards by full tensors.
  void save(torch::serialize::OutputArchive& archive) const override {
    if (boundary_ != nullptr) detail::RefuseToSaveSharded();
    Impl::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (boundary_ != nullptr) detail::RefuseToLoadSharded();
    Impl::load(archive);
  }

  bool HoldBack(std::string_view parameter) override {
    if constexpr (requires(Impl & impl) {
                    { impl.HoldBack(parameter) } -> std::same_as<bool>;
                  }) {
      return Impl::HoldBack(parameter);
    } else {
      return false;
    }
  }
  void ReleaseBack(std::string_view parameter) override {
    if constexpr (requires(Impl & impl) { impl.ReleaseBack(parameter); }) Impl::ReleaseBack(parameter);
  }
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total) override {
    if constexpr (requires(Impl & impl) {
                    { impl.SetLocalRows(first, rows, total) } -> std::same_as<bool>;
                  }) {
      return Impl::SetLocalRows(first, rows, total);
    } else {
      return false;
    }
  }

  bool SetLowRank(std::shared_ptr<const LowRank> term) override {
    if constexpr (requires(Impl & impl) {
                    { impl.SetLowRank(term) } -> std::same_as<bool>;
                  }) {
      return Impl::SetLowRank(std::move(term));
    } else {
      return false;
    }
  }

  bool SetRing(std::shared_ptr<const AttentionRing> ring) override {
    if constexpr (kSupportsRing<Impl>) {
      return Impl::SetRing(std::move(ring));
    } else {
      return false;
    }
  }
  bool SupportsRing() const override { return kSupportsRing<Impl>; }

  bool CanRunThrough() const override { return kCanRunThrough<Arguments...>; }

  // Checks the members that usually hold parameters: public tensors named weight and bias.
  std::string_view StaleParameter() const override {
    if constexpr (requires(const Impl& impl) {
                    { impl.weight } -> std::same_as<const at::Tensor&>;
                  }) {
      if (detail::IsStale(*this, "weight", Impl::weight)) return "weight";
    }
    if constexpr (requires(const Impl& impl) {
                    { impl.bias } -> std::same_as<const at::Tensor&>;
                  }) {
      if (detail::IsStale(*this, "bias", Impl::bias)) return "bias";
    }
    return {};
  }

 private:
  template <class Class>
  static constexpr bool kSupportsRing = requires(Class& impl, std::shared_ptr<const AttentionRing> ring) {
    { impl.SetRing(ring) } -> std::same_as<bool>;
  };

  template <class... Given>
  static constexpr bool kCanRunThrough =
      !std::is_void_v<Result> && detail::kHoldsTensors<std::remove_cvref_t<Result>> && (detail::kCanKeep<Given> && ...);

  template <class... Given>
  Result Call(Given&&... given) {
    if (boundary_ == nullptr) [[likely]]
      return Impl::forward(std::forward<Given>(given)...);
    return CallThrough<Given...>(std::forward<Given>(given)...);
  }

  // Without a runner, the inside of the call runs once, within this function; with a runner, every run of the runner
  // starts its own inside. An exception first destroys the arguments, then the states of the steps that were entered.
  template <class... Given>
  [[gnu::noinline]] Result CallThrough(Given&&... given) {
    const std::shared_ptr<Boundary> boundary = shared_boundary();
    CountCall();
    try {
      BoundaryCall call(*boundary);
      std::optional<InsideCall> inside;
      if constexpr (std::is_void_v<Result>) {
        EnterAndForward<Given...>(*boundary, call, inside, std::forward<Given>(given)...);
        inside->Leave({});
        inside.reset();
        call.Leave({});
      } else {
        Result result = EnterAndForward<Given...>(*boundary, call, inside, std::forward<Given>(given)...);
        detail::TensorSlots slots;
        detail::CollectResults(result, slots);
        if (inside) {
          inside->Leave(slots);
          inside.reset();
        }
        call.Leave(slots);
        return result;
      }
    } catch (...) {
      boundary->Explain();
      throw;
    }
  }

  // The held arguments are destroyed when this function returns, so that tensors that forward does not keep are freed
  // before the outputs are redistributed.
  template <class... Given>
  Result EnterAndForward(Boundary& boundary, BoundaryCall& call, std::optional<InsideCall>& inside, Given&&... given) {
    std::tuple<detail::Held<Given>...> held{detail::Held<Given>(std::forward<Given>(given))...};
    detail::TensorSlots slots;
    CollectHeld(held, slots, std::index_sequence_for<Given...>{});
    call.Enter(slots);
    if constexpr (kCanRunThrough<Given...>) {
      if (boundary.runner() != nullptr) [[unlikely]]
        return ForwardThrough<Given...>(held, slots);
    }
    inside.emplace(boundary).Enter(slots);
    return ForwardApplied<Given...>(held, std::index_sequence_for<Given...>{});
  }

  template <class Held, size_t... kPositions>
  static void CollectHeld(Held& held, detail::TensorSlots& slots, std::index_sequence<kPositions...>) {
    (detail::CollectTensors(std::get<kPositions>(held), kPositions, slots), ...);
  }

  // The arguments, without their tensors, are kept as long as the inside may run again. The tensors are passed to each
  // run.
  template <class... Given>
  Result ForwardThrough(std::tuple<detail::Held<Given>...>& held, detail::TensorSlots& slots) {
    std::vector<at::Tensor> inputs;
    for (const TensorSlot& slot : slots) inputs.push_back(std::move(*slot.tensor));
    using KeptArguments = std::tuple<detail::Kept<Given>...>;
    const auto kept = std::make_shared<const KeptArguments>(std::move(held));
    std::optional<Result> first;
    const auto sink = std::make_shared<std::optional<Result>*>(&first);
    const std::shared_ptr<Boundary> boundary = shared_boundary();
    const std::vector<at::Tensor> outputs = boundary->runner()->Run(
        [this, sink, kept, boundary, keep = this->weak_from_this().lock()](std::vector<at::Tensor> tensors) {
          KeptArguments arguments = *kept;
          detail::TensorSlots own;
          CollectHeld(arguments, own, std::index_sequence_for<Given...>{});
          for (size_t i = 0; i < own.size(); ++i) *own[i].tensor = std::move(tensors[i]);
          InsideCall inside(*boundary);
          inside.Enter(own);
          Result result = ForwardApplied<Given...>(arguments, std::index_sequence_for<Given...>{});
          detail::TensorSlots results;
          detail::CollectResults(result, results);
          inside.Leave(results);
          std::vector<at::Tensor> out;
          for (const TensorSlot& slot : results) out.push_back(*slot.tensor);
          if (*sink != nullptr) (*sink)->emplace(std::move(result));
          return out;
        },
        std::move(inputs));
    *sink = nullptr;
    Check(first.has_value(), "a CallRunner did not run the call");
    detail::TensorSlots results;
    detail::CollectResults(*first, results);
    Check(results.size() == outputs.size(), "a CallRunner returned another number of tensors");
    for (size_t i = 0; i < outputs.size(); ++i) *results[i].tensor = outputs[i];
    return std::move(*first);
  }

  template <class... Given, class Stored, size_t... kPositions>
  Result ForwardApplied([[maybe_unused]] Stored& held, std::index_sequence<kPositions...>) {
    return Impl::forward(static_cast<Given&&>(std::get<kPositions>(held))...);
  }
};

}  // namespace moonshard::nn

// AnyModule and ModuleHolder take the address of forward to test whether a class has one. The shorter forwards make
// that address ambiguous.
template <class Impl, class Arguments>
struct torch::detail::has_forward<moonshard::nn::Hooked<Impl, Arguments>> : std::true_type {};

// NOLINTBEGIN(bugprone-macro-parentheses): Name and ImplType are names of types
// Defines the holder class Name over a hookable ImplType, as TORCH_MODULE_IMPL does over a plain one.
#define MOONSHARD_MODULE_IMPL(Name, ImplType)                                       \
  class Name : public torch::nn::ModuleHolder<::moonshard::nn::Hooked<ImplType>> {  \
   public:                                                                          \
    using torch::nn::ModuleHolder<::moonshard::nn::Hooked<ImplType>>::ModuleHolder; \
    using Impl [[maybe_unused]] = ::moonshard::nn::Hooked<ImplType>;                \
  }
#define MOONSHARD_MODULE(Name) MOONSHARD_MODULE_IMPL(Name, Name##Impl)
// NOLINTEND(bugprone-macro-parentheses)
