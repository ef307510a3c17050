#include "tests/engine/analysis/prove/mutate_plan.h"

#include <algorithm>
#include <array>
#include <vector>

namespace moonshard::test {
namespace {

// As a rule of a plan that extends this one: it wins over all others.
void PutFirst(Plan& plan, Rule rule) {
  for (Rule& other : plan.rules) ++other.level;
  rule.level = 0;
  plan.rules.insert(plan.rules.begin(), std::move(rule));
}

std::string Arrow(const Layout& before, const Layout& after) { return before.ToText() + " -> " + after.ToText(); }

}  // namespace

Layout PlanMutator::AnyLayout() {
  switch (Below(13)) {
    case 12: return Layout::Owned(static_cast<int>(Below(2)), static_cast<int64_t>(Below(2)));
    case 0: return Layout::Replicate();
    case 1: return Layout::Shared();
    case 2: return Layout::Partial();
    case 3: return Layout::Shard(0);
    case 4: return Layout::Shard(1);
    case 5: return Layout::Shard(-1);
    case 6: return Layout::Shard(static_cast<int>(Below(2)), static_cast<int64_t>(1 + Below(8)));
    case 7: return Layout::PackedEqually(static_cast<int>(Below(2)), static_cast<int>(2 + Below(3)));
    case 8: return Layout::PackedEqually(-1, static_cast<int>(2 + Below(3)));
    case 9: return Layout::SharedLast(static_cast<int64_t>(4 * (1 + Below(16))));
    case 10: return Layout::Shard(-1, static_cast<int64_t>(1 + Below(8)));
    default: return Layout::Shard(1, 0);
  }
}

// Near to what it was: another number, an order, one word.
bool PlanMutator::Change(Layout& layout) {
  const Layout before = layout;
  if (layout.is_shard() && axis_ == MeshAxis::kCp && Below(4) == 0) {
    layout.zigzag = !layout.zigzag;
  } else if (layout.is_shard() && Below(3) > 0) {
    switch (Below(8)) {
      case 6:
        // Another border between two parts of the same dim.
        if (layout.parts.size() > 1 && layout.parts[0].size > 0) {
          const int64_t moved = layout.parts[1].size / (Below(2) == 0 ? 2 : 4);
          layout.parts[0].size += moved;
          layout.parts[1].size -= moved;
        }
        break;
      case 7: layout.dim = layout.dim == -1 ? 1 : -1; break;
      case 0: layout.heads = layout.heads == 0 ? static_cast<int64_t>(1 + Below(8)) : 0; break;
      case 1: layout.heads = Below(2) == 0 ? layout.heads * 2 : layout.heads / 2; break;
      case 2:
        if (layout.parts.size() > 1) std::swap(layout.parts.front(), layout.parts.back());
        break;
      case 3:
        for (Layout::Part& part : layout.parts) part.heads = Below(2) == 0 ? part.heads / 2 : part.heads * 2;
        break;
      case 4:
        if (layout.parts.empty()) {
          layout = Layout::PackedEqually(layout.dim, static_cast<int>(2 + Below(3)));
        } else {
          layout.parts.clear();
        }
        break;
      default: layout.dim = layout.dim == 0 ? 1 : 0; break;
    }
  } else {
    layout = AnyLayout();
  }
  return layout != before;
}

std::string PlanMutator::ChangeRedistribution(std::vector<std::optional<Redistribution>>& list,
                                              const std::string& what) {
  if (list.empty()) return "";
  std::optional<Redistribution>& one = list[Below(list.size())];
  if (!one) return "";
  switch (Below(6)) {
    case 0: one.reset(); return what + " dropped";
    case 1: std::swap(one->from, one->to); return what + " swapped: " + one->from.ToText() + " => " + one->to.ToText();
    case 2: one->to = one->from; return what + ": left as " + one->from.ToText();
    case 3: {
      const Layout before = On(one->from);
      if (!Change(On(one->from))) return "";
      return what + " from: " + Arrow(before, On(one->from));
    }
    case 4: {
      const Layout before = On(one->to);
      if (!Change(On(one->to))) return "";
      return what + " to: " + Arrow(before, On(one->to));
    }
    default: {
      const Layout before = On(one->to);
      if (!Change(On(one->to))) return "";
      On(one->from) = On(one->to);
      return what + " both: " + Arrow(before, On(one->to));
    }
  }
}

std::string PlanMutator::ChangeOneOf(std::map<std::string, Placement>& placements, const std::string& what) {
  if (placements.empty()) return "";
  auto at = placements.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(Below(placements.size())));
  const Layout before = On(at->second);
  if (!Change(On(at->second))) return "";
  return what + at->first + ": " + Arrow(before, On(at->second));
}

std::string PlanMutator::ChangeLayout(Rule& rule) {
  Style& style = rule.style;
  if (rule.parameter) {
    const Layout before = On(*rule.parameter);
    return Change(On(*rule.parameter)) ? "parameter: " + Arrow(before, On(*rule.parameter)) : "";
  }
  switch (Below(11)) {
    case 0:
    case 1:
    case 2: return ChangeOneOf(style.params, "params.");
    case 3:
    case 4: {
      constexpr int64_t kHeads[] = {0, 1, 2, 3, 4, 6, 8, 16};
      const int64_t before = style.heads;
      style.heads = kHeads[Below(std::size(kHeads))];
      return before == style.heads ? "" : "heads: " + std::to_string(before) + " -> " + std::to_string(style.heads);
    }
    case 5:
    case 6: return ChangeRedistribution(style.inputs, "input");
    case 7:
    case 8: return ChangeRedistribution(style.outputs, "output");
    case 9: {
      if (style.kinds.empty()) return "";
      auto at = style.kinds.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(Below(style.kinds.size())));
      return ChangeOneOf(at->second, "kinds." + at->first + ".");
    }
    default: {
      // A weight and what leaves it, changed alike: what types are most easily fooled by.
      const auto weight = style.params.find("weight");
      if (weight == style.params.end() || style.outputs.empty() || !style.outputs[0]) return "";
      const Layout before = On(weight->second);
      if (!Change(On(weight->second)) || !On(weight->second).is_shard()) return "";
      const auto bias = style.params.find("bias");
      if (bias != style.params.end() && On(bias->second).is_shard()) On(bias->second) = On(weight->second);
      Layout out = On(weight->second);
      out.dim = -1;
      On(style.outputs[0]->from) = out;
      On(style.outputs[0]->to) = out;
      return "weight and output: " + Arrow(before, On(weight->second));
    }
  }
}

std::string PlanMutator::ChangeRule(Plan& plan, size_t at) {
  Rule& rule = plan.rules[at];
  Style& style = rule.style;
  switch (Below(7)) {
    case 0: plan.rules.erase(plan.rules.begin() + static_cast<std::ptrdiff_t>(at)); return "deleted";
    case 1: {
      Rule& other = plan.rules[Below(plan.rules.size())];
      if (other.style == rule.style || other.parameter || rule.parameter) return "";
      std::swap(other.style, rule.style);
      return "style swapped with " + other.pattern;
    }
    case 2: {
      const Rule& other = plan.rules[Below(plan.rules.size())];
      if (other.style == rule.style || other.parameter || rule.parameter) return "";
      style = other.style;
      return "style of " + other.pattern;
    }
    case 3:
      if (style.after.empty()) {
        style.after.emplace_back("bias");
        return "after: bias";
      }
      style.after.clear();
      return "after: none";
    case 4: style.lookup = style.lookup == Lookup::kPlain ? Lookup::kMasked : Lookup::kPlain; return "lookup";
    case 5:
      if (!style.route) return "";
      if (Below(2) == 0) {
        style.route.reset();
        return "route: none";
      }
      std::swap(style.route->ids, style.route->weights);
      return "route: ids and weights swapped";
    default: {
      // One parameter by its path, in place of what its module's rule says of it.
      if (style.params.empty() || rule.parameter) return "";
      const std::string name = style.params.begin()->first;
      if (name == "*") return "";
      Rule one;
      one.pattern = rule.pattern + "." + name;
      one.syntax = rule.syntax;
      one.source = rule.source;
      one.parameter = style.params.begin()->second;
      if (!Change(On(*one.parameter))) return "";
      std::string what = name + " by its path: " + Arrow(On(style.params.begin()->second), On(*one.parameter));
      PutFirst(plan, std::move(one));
      return what;
    }
  }
}

// The rule again in front of itself, for one layer or for one of several names in braces, and there another.
std::string PlanMutator::ChangeNarrower(Plan& plan, size_t at) {
  Rule narrower = plan.rules[at];
  if (narrower.syntax != PatternSyntax::kGlob) return "";
  std::string& pattern = narrower.pattern;
  const size_t open = pattern.rfind('{');
  const size_t close = open == std::string::npos ? open : pattern.find('}', open);
  const size_t star = pattern.find(".*.");
  if (open != std::string::npos && pattern.find("..", open) >= close && (star == std::string::npos || Below(2) == 0)) {
    const std::string names = pattern.substr(open + 1, close - open - 1);
    const size_t comma = names.find(',');
    if (comma == std::string::npos) return "";
    const std::string name = Below(2) == 0 ? names.substr(0, comma) : names.substr(names.rfind(',') + 1);
    pattern.replace(open, close - open + 1, name);
  } else if (star != std::string::npos) {
    pattern.replace(star + 1, 1, Below(2) == 0 ? "0" : "1");
  } else {
    return "";
  }
  std::string what = Below(4) == 0 ? "" : ChangeLayout(narrower);
  if (what.empty()) {
    const Rule& other = plan.rules[Below(plan.rules.size())];
    if (other.style == narrower.style || other.parameter || narrower.parameter) return "";
    narrower.style = other.style;
    what = "style of " + other.pattern;
  }
  what = pattern + " alone: " + what;
  PutFirst(plan, std::move(narrower));
  return what;
}

std::string PlanMutator::ChangeOption(Rule& rule) {
  if (other_ == nullptr) return "";
  const auto found = std::ranges::find(other_->rules, rule.pattern, &Rule::pattern);
  if (found == other_->rules.end() || found->style == rule.style) return "";
  rule.style = found->style;
  return "as under other options";
}

std::string PlanMutator::ChangeSection(Plan& plan) {
  std::vector<std::string> layers;
  for (const Rule& rule : plan.rules) {
    const size_t star = rule.pattern.find(".*.");
    if (star == std::string::npos || rule.syntax != PatternSyntax::kGlob) continue;
    layers.push_back(rule.pattern.substr(0, star + 2));
    const size_t next = rule.pattern.find('.', star + 3);
    if (next != std::string::npos) layers.push_back(rule.pattern.substr(0, next));
  }
  if (layers.empty()) return "";
  const std::string part = layers[Below(layers.size())];
  const ModulePattern pattern{.pattern = part};
  switch (Below(6)) {
    case 0: {
      Recomputed section;
      section.modules = {pattern};
      section.keeps_attention = Below(2) == 0;
      if (Below(3) == 0) section.keeps_matmuls = Recomputed::Matmuls::kEverySecond;
      plan.recompute.push_back(section);
      return ToText(section);
    }
    case 1: {
      Precision section;
      section.parameters = "float64";
      section.reduce = "float64";
      plan.precision = section;
      return ToText(section);
    }
    case 2: {
      const KeptDType section{pattern, "float64"};
      if (plan.precision) return "";
      plan.kept_dtypes.push_back(section);
      return ToText(section);
    }
    case 3: {
      DataParallel section;
      section.shards = false;
      section.bucket_bytes = Below(2) == 0 ? 0 : 1024;
      plan.data_parallel = section;
      return ToText(section);
    }
    case 4: {
      DataParallel section;
      section.wrap = {pattern};
      section.reshard = Below(2) == 0 ? DataParallel::Reshard::kAlways : DataParallel::Reshard::kNever;
      section.prefetch_forward = static_cast<int64_t>(Below(3));
      section.prefetch_backward = static_cast<int64_t>(Below(3));
      section.accumulate_shards = Below(2) == 0;
      plan.data_parallel = section;
      return ToText(section);
    }
    default: {
      DataParallel section;
      section.ignored = {pattern};
      plan.data_parallel = section;
      return ToText(section);
    }
  }
}

std::string PlanMutator::Mutate(Plan& plan, Mutation mutation) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (mutation == Mutation::kSection) {
      std::string section = ChangeSection(plan);
      if (!section.empty()) return section;
      continue;
    }
    const size_t at = Below(plan.rules.size());
    const std::string which = "rule " + std::to_string(at) + " (" + plan.rules[at].pattern + "): ";
    std::string what;
    switch (mutation) {
      case Mutation::kLayout: what = ChangeLayout(plan.rules[at]); break;
      case Mutation::kRule: what = ChangeRule(plan, at); break;
      case Mutation::kNarrower: what = ChangeNarrower(plan, at); break;
      case Mutation::kOption: what = ChangeOption(plan.rules[at]); break;
      case Mutation::kSection: break;
    }
    if (!what.empty()) return which + what;
  }
  return "";
}

const char* ToString(Mutation mutation) {
  constexpr std::array<const char*, kMutations> kNames = {"layout", "rule", "narrower", "option", "section"};
  return kNames[static_cast<size_t>(mutation)];
}

}  // namespace moonshard::test
