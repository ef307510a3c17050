// TensorSlots: finds every tensor inside an argument or a result of forward, so that a Boundary can replace it.
// Supported types are Tensor, and, nested to any depth, optional, vector, array, pair, tuple, maps (their values), and
// structs with
//
//   template <class Visitor> void VisitTensors(Visitor&& visit) { visit(logits); visit(loss); }
//
// An object of any other type counts as containing no tensor. Only hook.h uses it.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard::nn::detail {

using TensorSlots = c10::SmallVector<TensorSlot, 8>;

struct AnyTensorVisitor {
  void operator()(at::Tensor& /*tensor*/) const {}
};
template <class T>
concept TensorStruct = requires(T& value, AnyTensorVisitor visit) {
  value.VisitTensors(visit);
};

// Whether a T can contain tensors.
template <class T>
inline constexpr bool kHoldsTensors = TensorStruct<T>;
template <>
inline constexpr bool kHoldsTensors<at::Tensor> = true;
template <class T>
inline constexpr bool kHoldsTensors<std::optional<T>> = kHoldsTensors<T>;
template <class T, class Allocator>
inline constexpr bool kHoldsTensors<std::vector<T, Allocator>> = kHoldsTensors<T>;
template <class T, size_t kSize>
inline constexpr bool kHoldsTensors<std::array<T, kSize>> = kHoldsTensors<T>;
template <class First, class Second>
inline constexpr bool kHoldsTensors<std::pair<First, Second>> = kHoldsTensors<First> || kHoldsTensors<Second>;
template <class... Elements>
inline constexpr bool kHoldsTensors<std::tuple<Elements...>> = (kHoldsTensors<Elements> || ...);
template <class T>
requires(!TensorStruct<T>) && requires { typename T::mapped_type; }
inline constexpr bool kHoldsTensors<T> = kHoldsTensors<typename T::mapped_type>;

template <class T>
inline constexpr bool kIsTupleLike = false;
template <class T, size_t kSize>
inline constexpr bool kIsTupleLike<std::array<T, kSize>> = true;
template <class First, class Second>
inline constexpr bool kIsTupleLike<std::pair<First, Second>> = true;
template <class... Elements>
inline constexpr bool kIsTupleLike<std::tuple<Elements...>> = true;

// Adds a slot for every tensor inside `value`. All slots have the position `position`.
template <class T>
void CollectTensors(T& value, size_t position, TensorSlots& slots) {
  if constexpr (!kHoldsTensors<T>) {
    return;
  } else if constexpr (std::same_as<T, at::Tensor>) {
    slots.push_back({position, &value});
  } else if constexpr (TensorStruct<T>) {
    value.VisitTensors([&](at::Tensor& tensor) { slots.push_back({position, &tensor}); });
  } else if constexpr (kIsTupleLike<T>) {
    std::apply([&](auto&... elements) { (CollectTensors(elements, position, slots), ...); }, value);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) CollectTensors(*value, position, slots);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& entry : value) CollectTensors(entry.second, position, slots);
  } else {
    for (auto& element : value) CollectTensors(element, position, slots);
  }
}

// Adds a slot for every tensor inside the result of forward. The position of a slot is the index of the element of a
// tuple, pair or array, or the index of the tensor of a struct in the order of VisitTensors. The position is 0 for a
// single tensor and for all tensors of a vector or map.
template <class T>
void CollectResults(T& result, TensorSlots& slots) {
  if constexpr (TensorStruct<T>) {
    size_t position = 0;
    result.VisitTensors([&](at::Tensor& tensor) { slots.push_back({position++, &tensor}); });
  } else if constexpr (kIsTupleLike<T>) {
    size_t position = 0;
    std::apply([&](auto&... elements) { (CollectTensors(elements, position++, slots), ...); }, result);
  } else {
    CollectTensors(result, 0, slots);
  }
}

}  // namespace moonshard::nn::detail
