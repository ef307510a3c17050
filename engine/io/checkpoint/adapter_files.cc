#include "engine/io/checkpoint/adapter_files.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/check.h"
#include "engine/core/base/join_first.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/writer.h"

namespace moonshard {
namespace {

constexpr std::string_view kExperts = "experts";

using AdaptedModules = std::vector<std::pair<std::string, const Adapter*>>;

// By path, of the active adapter.
AdaptedModules ModulesOf(const CompiledPlan& plan) {
  AdaptedModules out;
  for (const auto& [path, section] : plan.adapted) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    if (adapter.name == plan.active_adapter()) out.emplace_back(path, &adapter);
  }
  return out;
}

// Whether the path is that of a projection of an expert in a list: "PATH.experts.3.w1".
bool IsOfExpert(const std::string& path) {
  const std::vector<std::string> parts = Split(path, '.');
  if (parts.size() < 3 || parts[parts.size() - 3] != kExperts) return false;
  const std::string& number = parts[parts.size() - 2];
  return !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

AdapterFiles AdapterFilesOf(const CompiledPlan& plan) {
  AdapterFiles out;
  const AdaptedModules modules = ModulesOf(plan);
  if (modules.empty()) return out;
  const bool experts = std::ranges::any_of(modules, [](const auto& one) { return IsOfExpert(one.first); });
  const bool rslora = !experts && std::ranges::all_of(modules, [](const auto& one) { return one.second->rslora; });
  const auto alpha_of = [&](const Adapter& adapter) {
    return adapter.rslora == rslora ? adapter.alpha : adapter.scale() * static_cast<double>(adapter.rank);
  };
  std::map<std::pair<int64_t, double>, size_t> counts;
  for (const auto& [path, adapter] : modules) {
    if (!experts || IsOfExpert(path)) ++counts[{adapter->rank, alpha_of(*adapter)}];
  }
  const auto [rank, alpha] =
      std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })->first;
  JsonValue::Array targets;
  JsonValue::Object ranks;
  JsonValue::Object alphas;
  for (const auto& [path, adapter] : modules) {
    targets.emplace_back(path);
    if (adapter->rank != rank) ranks[path] = adapter->rank;
    if (alpha_of(*adapter) != alpha) alphas[path] = alpha_of(*adapter);
    const bool looks_up = plan.LayoutsOf(static_cast<size_t>(plan.tree->Find(path))).looks_up;
    for (const char* factor : {"A", "B"}) {
      const std::string name =
          looks_up ? std::string("lora_embedding_") + factor : std::string("lora_") + factor + ".weight";
      out.stored_as["base_model.model." + path + "." + name] = path + ".lora_" + factor + "." + adapter->name;
    }
  }
  out.config = WriteJson(JsonValue::Object{{"alpha_pattern", std::move(alphas)},
                                           {"base_model_name_or_path", nullptr},
                                           {"bias", "none"},
                                           {"fan_in_fan_out", false},
                                           {"inference_mode", true},
                                           {"lora_alpha", alpha},
                                           {"lora_dropout", experts ? 0 : modules.front().second->dropout},
                                           {"modules_to_save", nullptr},
                                           {"peft_type", "LORA"},
                                           {"r", rank},
                                           {"rank_pattern", std::move(ranks)},
                                           {"target_modules", std::move(targets)},
                                           {"task_type", nullptr},
                                           {"use_rslora", rslora}},
                         2) +
               "\n";
  return out;
}

Diagnostics PeftWarnings(const CompiledPlan& plan) {
  const auto has_experts = [](const Module& module) {
    return std::ranges::count(Split(module.path, '.'), std::string(kExperts)) > 0;
  };
  if (std::ranges::none_of(plan.tree->modules(), has_experts)) return {};
  std::vector<std::string> lost;
  for (const auto& [path, adapter] : ModulesOf(plan)) {
    const std::string name = path.substr(path.rfind('.') + 1);
    const bool taken = name == "gate_proj" || name == "up_proj" || name == "down_proj";
    if (taken && !IsOfExpert(path)) lost.push_back(path);
  }
  if (lost.empty()) return {};
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "PEFT does not read the factors of " + Count(lost.size(), "module") +
                                                 " outside of the experts: " + JoinFirst(lost, 4));
  d.severity = Severity::kWarning;
  d.path = kAdapterConfigFile;
  d.declared = "modules of the names that PEFT has for projections of experts";
  d.required = "an adapter without them, if PEFT is to compute as moonshard does";
  return {std::move(d)};
}

void AddAdapterFiles(const AdapterFiles& adapter, const Manifest& manifest, ModelForm& form) {
  if (adapter.config.empty()) return;
  std::vector<TensorSpec> specs;
  for (const auto& [name, stored_as] : adapter.stored_as) {
    const ShardedTensor* stored = manifest.Find(stored_as);
    Check(stored != nullptr, "a factor of an adapter is not in the manifest");
    specs.push_back({name, stored->dtype, manifest.LayoutOf(*stored).shape});
    WeightRecipe recipe;
    recipe.tensor = stored_as;
    form.made[name] = std::move(recipe);
  }
  SafetensorsWriter::SortForWriting(specs);
  Result<WrittenHeader> header = WriteHeader(kAdapterModelFile, specs, {{"format", "pt"}});
  Check(header.ok(), "no valid header for the factors of an adapter");
  form.headers[kAdapterModelFile] = std::move(header).value().text;
  form.kept.erase(kAdapterModelFile);
  form.kept[kAdapterConfigFile] = adapter.config;
}

}  // namespace moonshard
