#include "engine/plan/plan/sections.h"

#include <charconv>
#include <cmath>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string PatternsText(const std::vector<ModulePattern>& modules) {
  std::vector<std::string> patterns;
  for (const ModulePattern& module : modules) patterns.push_back(module.pattern);
  return Join(patterns, ", ");
}

}  // namespace

bool IsAdapterName(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 100 && std::ranges::all_of(name, fits);
}

double Adapter::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

std::string ToText(const DataParallel& section) {
  const DataParallel usual;
  std::string out = section.name();
  if (section.shards) {
    const std::string reshard[] = {"always", "never", "all_but_last", std::to_string(section.reshard_ranks)};
    out += " wrap=[" + PatternsText(section.wrap) + "] reshard=" + reshard[static_cast<size_t>(section.reshard)];
    if (section.prefetch_forward != usual.prefetch_forward || section.prefetch_backward != usual.prefetch_backward) {
      out += " prefetch=" + std::to_string(section.prefetch_forward) + "," + std::to_string(section.prefetch_backward);
    }
    if (section.accumulate_shards) out += " accumulate=shards";
    if (section.offload) out += " offload";
    if (!section.ignored.empty()) out += " ignore=[" + PatternsText(section.ignored) + "]";
  }
  if (!section.shards && section.bucket_bytes != usual.bucket_bytes) {
    out += " bucket=" + std::to_string(section.bucket_bytes);
  }
  if (section.buffers != usual.buffers) {
    const char* const rules[] = {"first", "mean", "refuse"};
    out += std::string(" buffers=") + rules[static_cast<size_t>(section.buffers)];
  }
  return out + " gradients=" + (section.mean ? "mean" : "sum");
}

std::string ToText(const Recomputed& section) {
  std::string out = "recompute [" + PatternsText(section.modules) + "]";
  std::vector<std::string> keep;
  if (section.keeps_attention) keep.emplace_back("attention");
  if (section.keeps_matmuls == Recomputed::Matmuls::kAll) keep.emplace_back("matmul");
  if (section.keeps_matmuls == Recomputed::Matmuls::kEverySecond) keep.emplace_back("every_second_matmul");
  if (!keep.empty()) out += " keep=[" + Join(keep, ", ") + "]";
  if (!section.keep_modules.empty()) out += " keep_modules=[" + PatternsText(section.keep_modules) + "]";
  return out;
}

std::string ToText(const Precision& section) {
  std::string out = "precision";
  if (!section.parameters.empty()) out += " parameters=" + section.parameters;
  if (!section.reduce.empty()) out += " reduce=" + section.reduce;
  if (!section.outputs.empty()) out += " outputs=" + section.outputs;
  if (!section.cast_inputs) out += " cast_inputs=false";
  return out;
}

std::string ToText(const Adapter& section) {
  return "lora " + section.name + " [" + PatternsText(section.modules) + "] " + SettingsText(section);
}

std::string ShortestText(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

std::string SettingsText(const Adapter& section) {
  std::string out = "rank=" + std::to_string(section.rank) + " alpha=" + ShortestText(section.alpha);
  if (section.dropout > 0) out += " dropout=" + ShortestText(section.dropout);
  if (section.rslora) out += " rslora";
  if (!section.dtype.empty()) out += " dtype=" + section.dtype;
  return out;
}

std::string ToText(const OperatorLike& section) { return "operator_like " + section.name + " " + section.like; }

std::string ToText(const KeptDType& section) { return "keep_dtype [" + section.modules.pattern + "] " + section.dtype; }

}  // namespace moonshard
