#include "engine/graph/plain_loss.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

namespace moonshard {

bool IsOfPlainLoss(const ProgramNode& node) {
  static const std::set<std::string, std::less<>> kMoves = {
      "aten::_to_copy",    "aten::_unsafe_view",    "aten::alias",
      "aten::cat",         "aten::clone",           "aten::constant_pad_nd",
      "aten::contiguous",  "aten::detach",          "aten::flatten",
      "aten::full",        "aten::lift_fresh_copy", "aten::new_full",
      "aten::pad",         "aten::permute",         "aten::reshape",
      "aten::slice",       "aten::squeeze",         "aten::to",
      "aten::transpose",   "aten::unsqueeze",       "aten::view",
      "aten::log_softmax", "aten::_log_softmax"};
  static const std::set<std::string, std::less<>> kLosses = {"aten::cross_entropy_loss", "aten::nll_loss",
                                                             "aten::nll_loss_nd"};
  static const std::set<std::string, std::less<>> kScales = {"aten::mul", "aten::div"};
  const auto is_value = [](const auto& input) { return input.second.kind == ProgramArgument::Kind::kValue; };
  if (node.kind == ProgramNode::Kind::kBranch) return std::ranges::none_of(node.inputs, is_value);
  if (node.kind != ProgramNode::Kind::kOperator) return true;
  if (kMoves.contains(node.target)) return true;
  if (kScales.contains(node.target)) return std::ranges::count_if(node.inputs, is_value) == 1;
  if (!kLosses.contains(node.target)) return false;
  for (const auto& [name, argument] : node.inputs) {
    if (name == "weight" && argument.kind != ProgramArgument::Kind::kNone) return false;
    if (name == "ignore_index" && (argument.kind != ProgramArgument::Kind::kInt || argument.integer != -100))
      return false;
  }
  return true;
}

}  // namespace moonshard
