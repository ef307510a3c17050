#include "engine/models/program/trial/site.h"

#include <ios>
#include <sstream>

namespace moonshard::trial {

double AsReal(const c10::IValue& number) {
  return number.isBool() ? static_cast<double>(number.toBool()) : number.toScalar().toDouble();
}

bool SameNumber(const c10::IValue& a, const c10::IValue& b) {
  const double left = AsReal(a);
  const double right = AsReal(b);
  return left == right || (left != left && right != right);
}

bool RankNumber::differs() const {
  return kind == Kind::kKnown &&
         std::ranges::any_of(local, [&](const c10::IValue& one) { return !SameNumber(one, full); });
}

std::vector<uint32_t> Site::Lacks() const {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < operands(); ++i) {
    if (!IsTensor(i)) continue;
    if (late[i]) out.push_back(run->reads()[i]);
    out.insert(out.end(), spreads[i].lacks.begin(), spreads[i].lacks.end());
  }
  return out;
}

std::optional<std::string> Site::Key() const {
  std::ostringstream out;
  out << std::hexfloat << node->target << "." << node->overload << (node->outputs_in_list ? "*" : "") << looks_up;
  const auto add_argument = [&](const ProgramArgument& one, const auto& self) -> void {
    out << static_cast<int>(one.kind) << one.of_tensors << one.of_floats << " ";
    if (one.kind == ProgramArgument::Kind::kValue) {
      out << std::ranges::find(run->reads(), one.value) - run->reads().begin();
    } else {
      out << one.integer << " " << one.number << " " << one.text.size() << ":" << one.text;
    }
    out << "(";
    for (const ProgramArgument& element : one.elements) self(element, self);
    out << ")";
  };
  for (const auto& [name, argument] : node->inputs) {
    out << name << "=";
    add_argument(argument, add_argument);
  }
  for (size_t i = 0; i < node->outputs.size(); ++i) {
    out << (node->outputs[i] == ProgramNode::kNoValue ? "-" : MakesTensor(i) ? "t" : "n");
  }
  for (size_t i = 0; i < operands(); ++i) {
    out << "\n" << static_cast<int>(value(i).kind);
    if (!IsTensor(i)) {
      out << static_cast<int>(numbers[i].kind);
      if (numbers[i].kind != RankNumber::Kind::kKnown) continue;
      out << numbers[i].full.tagKind() << AsReal(numbers[i].full);
      for (const c10::IValue& one : numbers[i].local) out << " " << AsReal(one);
      continue;
    }
    const Spread& spread = spreads[i];
    if (late[i] || !spread.lacks.empty()) return std::nullopt;
    out << value(i).dtype << spread.zero << static_cast<int>(spread.kind);
    // Constants live as long as the keys, so that an address is one constant's.
    if (spread.constant.defined()) out << "c" << spread.constant.unsafeGetTensorImpl();
    for (const int64_t size : value(i).sizes) out << " " << size;
    for (const int64_t dim : spread.uniform) out << "u" << dim;
    for (const Spread::Shard& shard : spread.shards) {
      out << "d" << shard.dim << "h" << shard.hash;
    }
  }
  return std::move(out).str();
}

}  // namespace moonshard::trial
