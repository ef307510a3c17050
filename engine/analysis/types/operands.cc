#include "engine/analysis/types/operands.h"

#include <algorithm>
#include <utility>

namespace moonshard {

int Operands::TensorOf(int a) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].argument == a) return static_cast<int>(i);
  }
  return -1;
}

int64_t Operands::Int(size_t a, int64_t otherwise) const {
  if (a >= arguments_.size()) return otherwise;
  const c10::IValue& value = arguments_[a];
  if (value.isInt()) return value.toInt();
  if (value.isSymInt()) return value.toSymInt().guard_int(__FILE__, __LINE__);
  return otherwise;
}

int64_t Operands::Dim(size_t a, int64_t dims) const {
  const int64_t dim = Int(a);
  return dim < 0 ? dim + std::max<int64_t>(dims, 1) : dim;
}

std::vector<int64_t> Operands::Ints(size_t a) const {
  if (a >= arguments_.size()) return {};
  const c10::IValue& value = arguments_[a];
  if (value.isIntList()) return value.toIntVector();
  if (value.isInt() || value.isSymInt()) return {Int(a)};
  std::vector<int64_t> out;
  if (!value.isList()) return out;
  for (const c10::IValue& one : value.toListRef()) {
    out.push_back(one.isSymInt() ? one.toSymInt().guard_int(__FILE__, __LINE__) : one.toInt());
  }
  return out;
}

std::vector<bool> Operands::Flags(size_t a) const {
  std::vector<bool> out;
  if (a >= arguments_.size() || !arguments_[a].isBoolList()) return out;
  for (const bool flag : arguments_[a].toBoolList()) out.push_back(flag);
  return out;
}

bool Operands::Flag(size_t a) const {
  return a < arguments_.size() && arguments_[a].isBool() && arguments_[a].toBool();
}

size_t Operands::Named(std::string_view argument) const {
  const std::vector<c10::Argument>& all = schema_.arguments();
  return static_cast<size_t>(std::ranges::find_if(all, [&](const c10::Argument& a) { return a.name() == argument; }) -
                             all.begin());
}

bool Operands::Any(TypeKind kind) const {
  return std::ranges::any_of(types_, [&](const AxisType& type) { return type.is(kind); });
}

bool Operands::All(TypeKind kind) const {
  return std::ranges::all_of(types_, [&](const AxisType& type) { return type.is(kind); });
}

std::string Phrase(std::string_view before, int64_t dim, std::string_view after) {
  std::string out(before);
  out.append(std::to_string(dim)).append(after);
  return out;
}

std::string Phrase(std::string_view before, const AxisType& type) {
  std::string out(before);
  out.append(type.ToString());
  return out;
}

std::string Quoted(std::string_view name, std::string_view after) {
  std::string out("'");
  out.append(name).append("'").append(after);
  return out;
}

AxisType Operands::Fault(std::string message, SuggestedFix suggested_fix) {
  if (fault_.empty()) {
    fault_ = std::move(message);
    suggested_fix_ = suggested_fix;
  }
  return AxisType::Of(TypeKind::kFaulty);
}

AxisType Operands::Unproven(std::string why) {
  if (unproven_.empty()) unproven_ = std::move(why);
  return AxisType::Of(TypeKind::kUnproven);
}

}  // namespace moonshard
