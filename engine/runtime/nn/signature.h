// Signature: the argument and result types of a forward, and the shorter calls that its default arguments allow. Only
// hook.h uses it.
#pragma once

#include <type_traits>
#include <utility>

namespace moonshard::nn::detail {

template <class... Elements>
struct Types {};

template <class MemberFunction>
struct Signature;
template <class ResultType, class Class, class... Args>
struct Signature<ResultType (Class::*)(Args...)> {
  using Result = ResultType;
  using Arguments = Types<Args...>;
  static constexpr bool kIsConst = false;
};
template <class ResultType, class Class, class... Args>
struct Signature<ResultType (Class::*)(Args...) const> : Signature<ResultType (Class::*)(Args...)> {
  static constexpr bool kIsConst = true;
};
template <class ResultType, class Class, class... Args>
struct Signature<ResultType (Class::*)(Args...) noexcept> : Signature<ResultType (Class::*)(Args...)> {};
template <class ResultType, class Class, class... Args>
struct Signature<ResultType (Class::*)(Args...) const noexcept> : Signature<ResultType (Class::*)(Args...) const> {};

// A module class whose forward is one plain member function. An overloaded or template forward has no single signature.
template <class Impl>
concept HasOneForward = requires {
  &Impl::forward;
};

template <class Impl>
using ForwardSignature = Signature<decltype(&Impl::forward)>;

template <class Impl, class... Given>
concept ForwardAccepts = requires(Impl& module, Given&&... given) {
  module.forward(std::forward<Given>(given)...);
};

// For an Impl::forward with default arguments: one forward for each shorter list of arguments that Impl accepts. The
// shorter forwards are const. AnyModule looks for a non-const forward, so it finds only the full one.
template <class Owner, class Impl, class Given, class Rest>
class ShortForwards;

template <class Owner, class Impl, class... Given>
class ShortForwards<Owner, Impl, Types<Given...>, Types<>> {
  class Never;

 public:
  void forward(Never&) const;  // so that a using-declaration finds the name
};

template <class Owner, class Impl, class... Given, class Next, class... Rest>
class ShortForwards<Owner, Impl, Types<Given...>, Types<Next, Rest...>>
    : public ShortForwards<Owner, Impl, Types<Given..., Next>, Types<Rest...>> {
 public:
  using ShortForwards<Owner, Impl, Types<Given..., Next>, Types<Rest...>>::forward;
  typename ForwardSignature<Impl>::Result forward(Given... given) const requires ForwardAccepts<Impl, Given...> {
    return const_cast<Owner&>(static_cast<const Owner&>(*this)).Call(std::forward<Given>(given)...);
  }
};

}  // namespace moonshard::nn::detail
