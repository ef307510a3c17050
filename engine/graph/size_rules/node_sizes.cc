#include "engine/graph/size_rules/node_sizes.h"

#include <algorithm>

#include "engine/graph/size_rules/dims.h"
#include "engine/layout/dtype.h"

namespace moonshard::graph {

namespace {
using Kind = SizeConflict::Kind;
}  // namespace

const ProgramArgument* NodeSizes::Find(std::string_view name) const {
  for (const auto& [key, argument] : node().inputs) {
    if (key == name) return argument.kind == ProgramArgument::Kind::kNone ? nullptr : &argument;
  }
  return nullptr;
}

bool NodeSizes::IsTensor(const ProgramArgument& argument) const {
  return argument.kind == ProgramArgument::Kind::kValue &&
         program_.values[argument.value].kind == ProgramValue::Kind::kTensor;
}

bool NodeSizes::IsFloat(const ProgramArgument& argument) const {
  return argument.kind == ProgramArgument::Kind::kValue &&
         program_.values[argument.value].kind == ProgramValue::Kind::kFloat;
}

bool NodeSizes::IsMask(const ProgramArgument& argument) const {
  return IsTensor(argument) && DTypeFromExported(program_.values[argument.value].dtype) == DType::kBool;
}

const LocalTensor* NodeSizes::TensorOf(const ProgramArgument& argument) const {
  if (!IsTensor(argument)) return nullptr;
  const LocalTensor& tensor = tensors_[argument.value];
  return tensor.known ? &tensor : nullptr;
}

const LocalTensor* NodeSizes::Tensor(std::string_view name) const {
  const ProgramArgument* argument = Find(name);
  return argument == nullptr ? nullptr : TensorOf(*argument);
}

std::optional<std::vector<const LocalTensor*>> NodeSizes::Tensors() const {
  std::vector<const LocalTensor*> out;
  const auto add = [&](const ProgramArgument& argument) {
    if (!IsTensor(argument)) return true;
    out.push_back(TensorOf(argument));
    return out.back() != nullptr;
  };
  for (const auto& [name, argument] : node().inputs) {
    if (!add(argument)) return std::nullopt;
    for (const ProgramArgument& element : argument.elements) {
      if (!add(element)) return std::nullopt;
    }
  }
  return out;
}

LocalNumber NodeSizes::NumberOf(const ProgramArgument& argument) const {
  if (argument.kind == ProgramArgument::Kind::kInt || argument.kind == ProgramArgument::Kind::kBool) {
    // "to the end" is written as the largest integer.
    const int64_t integer = std::clamp(argument.integer, -kLargestSize, kLargestSize);
    return {integer, integer, LocalDim::kNone, true};
  }
  if (argument.kind == ProgramArgument::Kind::kFloat) {
    LocalNumber number = LocalNumber::Of(argument.number, argument.number);
    number.literal = true;
    return number;
  }
  if (argument.kind == ProgramArgument::Kind::kValue && !IsTensor(argument)) return numbers_[argument.value];
  return {};
}

LocalNumber NodeSizes::Number(std::string_view name, std::optional<int64_t> absent) const {
  const ProgramArgument* argument = Find(name);
  return argument == nullptr ? LocalNumber{absent, absent} : NumberOf(*argument);
}

std::optional<std::vector<LocalNumber>> NodeSizes::Numbers(std::string_view name) const {
  const ProgramArgument* argument = Find(name);
  if (argument == nullptr) return std::nullopt;
  std::vector<LocalNumber> out;
  const auto add = [&](const ProgramArgument& one) {
    out.push_back(NumberOf(one));
    return out.back().known();
  };
  if (argument->kind != ProgramArgument::Kind::kList) {
    if (!add(*argument)) return std::nullopt;
    return out;
  }
  for (const ProgramArgument& one : argument->elements) {
    if (!add(one)) return std::nullopt;
  }
  return out;
}

std::optional<size_t> NodeSizes::Dim(std::string_view name, size_t rank) const {
  const LocalNumber number = Number(name);
  if (!number.known()) return std::nullopt;
  const int64_t dim = *number.full < 0 ? *number.full + static_cast<int64_t>(rank) : *number.full;
  if (dim < 0 || static_cast<size_t>(dim) >= rank) return std::nullopt;
  return static_cast<size_t>(dim);
}

bool NodeSizes::LosesFractions() const {
  const auto is_whole = [&](uint32_t value) {
    const std::optional<DType> dtype = DTypeFromExported(program_.values[value].dtype);
    return dtype && (*dtype == DType::kBool || *dtype == DType::kU8 || *dtype == DType::kI8 || *dtype == DType::kI16 ||
                     *dtype == DType::kI32 || *dtype == DType::kI64);
  };
  if (!HasResult(0) || !is_whole(node().outputs[0])) return false;
  const auto is_fraction = [&](const auto& input) { return IsTensor(input.second) && !is_whole(input.second.value); };
  return std::ranges::any_of(node().inputs, is_fraction) ||
         DTypeFromExported(program_.values[node().outputs[0]].dtype) == DType::kBool;
}

bool NodeSizes::HasResult(size_t i) const {
  return i < node().outputs.size() && node().outputs[i] != ProgramNode::kNoValue &&
         program_.values[node().outputs[i]].kind == ProgramValue::Kind::kTensor;
}

const std::vector<int64_t>& NodeSizes::FullSizes(size_t i) const {
  static const std::vector<int64_t> kNone;
  return HasResult(i) ? program_.values[node().outputs[i]].sizes : kNone;
}

LocalDim NodeSizes::Made(const LocalNumber& number) const {
  LocalDim out;
  out.full = number.full.value_or(0);
  out.local = number.local.value_or(0);
  out.origin = out.is_sharded() ? number.origin : LocalDim::kNone;
  if (number.literal && out.full > 1) out.integer_at = static_cast<int32_t>(index_);
  return out;
}

void NodeSizes::Conflict(SizeConflict::Kind kind, std::string message, std::optional<double> declared,
                         std::optional<double> required, const LocalDim* sharded, const LocalDim* other,
                         int32_t integer_at) {
  if (conflict) return;
  conflict.emplace();
  conflict->kind = kind;
  conflict->node = index_;
  conflict->message = std::move(message);
  conflict->declared = declared;
  conflict->required = required;
  conflict->integer_at = integer_at;
  if (sharded != nullptr) conflict->origin = sharded->origin;
  if (other != nullptr) conflict->other_origin = other->origin;
}

bool NodeSizes::Agree(const LocalDim& a, const LocalDim& b, std::string_view what) {
  if (a.full != b.full) return true;
  if (a.local == b.local) return SameParts(*this, a, b, what);
  const bool second = !a.is_sharded() || (b.is_sharded() && b.integer_at < 0 && a.integer_at >= 0);
  const LocalDim& sharded = second ? b : a;
  const LocalDim& other = second ? a : b;
  const bool integer = other.integer_at >= 0;
  Conflict(integer ? Kind::kInteger : Kind::kOperands,
           std::string(what) + " have different local sizes: " + SizeText(a) + " and " + SizeText(b), other.local,
           sharded.local, &sharded, &other, integer ? other.integer_at : LocalDim::kNone);
  return false;
}

void ForEachTensor(const NodeSizes& n, const std::function<void(const std::string&, const LocalTensor&)>& visit) {
  const auto take = [&](const std::string& key, const ProgramArgument& argument) {
    if (const LocalTensor* one = n.TensorOf(argument)) visit(key, *one);
  };
  for (const auto& [key, argument] : n.node().inputs) {
    take(key, argument);
    for (const ProgramArgument& element : argument.elements) take(key, element);
  }
}

}  // namespace moonshard::graph
