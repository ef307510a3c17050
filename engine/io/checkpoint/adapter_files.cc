#include "engine/io/checkpoint/adapter_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/core/base/check.h"
#include "engine/core/base/json.h"
#include "engine/io/safetensors/writer.h"

namespace moonshard {

AdapterFiles AdapterFilesOf(const CompiledPlan& plan) {
  AdapterFiles out;
  std::vector<std::pair<std::string, const Adapter*>> modules;
  for (const auto& [path, section] : plan.adapted) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    if (adapter.name == plan.active_adapter()) modules.emplace_back(path, &adapter);
  }
  if (modules.empty()) return out;
  const bool rslora = std::ranges::all_of(modules, [](const auto& one) { return one.second->rslora; });
  const auto alpha_of = [&](const Adapter& adapter) {
    return adapter.rslora == rslora ? adapter.alpha : adapter.scale() * static_cast<double>(adapter.rank);
  };
  std::map<std::pair<int64_t, double>, size_t> counts;
  for (const auto& [path, adapter] : modules) ++counts[{adapter->rank, alpha_of(*adapter)}];
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
                                           {"lora_dropout", modules.front().second->dropout},
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
