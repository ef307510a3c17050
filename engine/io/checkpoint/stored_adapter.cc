#include "engine/io/checkpoint/stored_adapter.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <re2/re2.h>

#include "engine/core/base/check.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

// The end of a factor's name.
struct Form {
  std::string_view ending;
  bool first;
  bool looks_up;
};
constexpr Form kForms[] = {{".lora_A.weight", true, false},
                           {".lora_B.weight", false, false},
                           {".lora_embedding_A", true, true},
                           {".lora_embedding_B", false, true}};

// How transformers stacks the experts of a model whose experts are modules in a list: the parameters gate_up_proj
// [experts, 2 * size, hidden] and down_proj [experts, hidden, size] of one module.
struct ListedExperts {
  std::string_view model_type;
  std::string_view stack;  // path within a layer
  std::string_view list;   // path within a layer of the list
  std::string_view gate, up, down;
  int64_t experts;  // by default
};
constexpr ListedExperts kListedExperts[] = {
    {"mixtral", ".mlp.experts", ".block_sparse_moe.experts", "w1", "w3", "w2", 8},
    {"qwen2_moe", ".mlp.experts", ".mlp.experts", "gate_proj", "up_proj", "down_proj", 60},
    {"qwen3_moe", ".mlp.experts", ".mlp.experts", "gate_proj", "up_proj", "down_proj", 128}};

constexpr std::string_view kGateUp = "gate_up_proj";
constexpr std::string_view kDown = "down_proj";
// PEFT wraps a module once for each adapted parameter: the factors of the inner parameter have this in their names.
constexpr std::string_view kInner = ".base_layer";

WeightRecipe TensorOf(const StoredTensor& tensor) {
  return {.kind = WeightRecipe::Kind::kTensor, .tensor = tensor.name};
}

WeightRecipe SliceOf(WeightRecipe of, int64_t start, int64_t stop) {
  return {.kind = WeightRecipe::Kind::kSlice, .parts = {std::move(of)}, .dim = 0, .start = start, .stop = stop};
}

// Factor B of one expert, of a stack [out, rank * experts] in which the experts of one rank are neighbours.
WeightRecipe SecondOf(const StoredTensor& stack, int64_t experts, int64_t expert) {
  const std::vector<int64_t> shape = {stack.shape[0], stack.shape[1] / experts, experts};
  WeightRecipe apart = {.kind = WeightRecipe::Kind::kReshape, .parts = {TensorOf(stack)}, .shape = shape};
  return {.kind = WeightRecipe::Kind::kSelect, .parts = {std::move(apart)}, .dim = 2, .start = expert};
}

// The factors of one module.
struct Factors {
  const StoredTensor* a = nullptr;  // [rank, in]
  const StoredTensor* b = nullptr;  // [out, rank]
  const Form* form = nullptr;       // of one of them
};

class AdapterReader {
 public:
  AdapterReader(const std::string& folder, HeaderOptions options, const std::string& name, AdaptedModel model)
      : file_(folder + "/adapter_config.json"),
        weights_(folder + "/adapter_model.safetensors"),
        options_(options),
        model_(std::move(model)) {
    out_.name = name;
  }

  Result<StoredAdapter> Run() {
    std::optional<JsonValue> config = ReadJsonFile(file_, SmallFile::kConfig, JsonDialect::kPython).Collect(found_);
    std::optional<Checkpoint> checkpoint = Checkpoint::OpenFile(weights_, options_).Collect(found_);
    if (config && !config->is_object()) {
      Refuse("adapter_config.json is not an object", "an object, as PEFT writes it");
      config.reset();
    }
    if (config) ReadConfig(*config);
    if (checkpoint) ReadNames(*checkpoint);
    if (config && checkpoint && !refuses_stacks_) {
      Unstack();
      AddSections();
    }
    if (HasErrors(found_)) return std::move(found_);
    out_.checkpoint = *std::move(checkpoint);
    return Result<StoredAdapter>(std::move(out_), std::move(found_));
  }

 private:
  Diagnostic& Add(Finding finding, std::string message, const std::string& path) {
    Diagnostic& d = found_.emplace_back(MakeDiagnostic(finding, std::move(message)));
    d.path = path;
    return d;
  }

  void Refuse(std::string message, std::string required) {
    Add(Finding::kUnsupportedModel, std::move(message), file_).required = std::move(required);
  }

  // --- adapter_config.json

  void ReadConfig(const JsonValue& config) {
    const JsonValue* type = config.Find("peft_type");
    if (type == nullptr || !type->is_string() || type->AsString() != "LORA")
      Refuse("the adapter is not a LoRA", "\"peft_type\": \"LORA\"");
    for (const char* key : {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save",
                            "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config",
                            "kasa_config", "monteclora_config", "velora_config", "ensure_weight_tying"}) {
      const JsonValue* value = config.Find(key);
      if (value == nullptr || IsNothing(*value)) continue;
      Refuse(std::string("the adapter has '") + key + "', which no plan can declare",
             "an adapter of the weights of Linear modules and lookups alone");
    }
    ReadTargets(config);
    const JsonValue* bias = config.Find("bias");
    if (bias != nullptr && !(bias->is_string() && bias->AsString() == "none"))
      Refuse("the adapter trains biases, which no plan can declare", "\"bias\": \"none\"");
    rank_ = Number(config, "r", 8);
    alpha_ = Number(config, "lora_alpha", 8);
    dropout_ = Number(config, "lora_dropout", 0);
    if (dropout_ < 0 || dropout_ >= 1) Refuse("lora_dropout is " + ShortestText(dropout_), "at least 0, and below 1");
    const JsonValue* scaled = config.Find("use_rslora");
    if (scaled != nullptr && !scaled->is_bool() && !scaled->is_null()) Refuse("use_rslora is no boolean", "a boolean");
    rslora_ = scaled != nullptr && scaled->is_bool() && scaled->AsBool();
    ReadPatterns(config, "rank_pattern", ranks_);
    ReadPatterns(config, "alpha_pattern", alphas_);
  }

  // Parameters that have factors of their own: those of stacked experts.
  void ReadTargets(const JsonValue& config) {
    const JsonValue* targets = config.Find("target_parameters");
    if (targets == nullptr || IsNothing(*targets)) return;
    const auto known = std::ranges::find(kListedExperts, model_.type, &ListedExperts::model_type);
    refuses_stacks_ = model_.is_program || known == std::end(kListedExperts);
    if (model_.is_program) {
      return Refuse(
          "the adapter has 'target_parameters', and the model is an exported program, whose experts are "
          "stacked: such experts have no adapters",
          "a model whose experts are a list (a model directory without --program), or an adapter without "
          "'target_parameters'");
    }
    if (refuses_stacks_) {
      return Refuse("the adapter has 'target_parameters', of a model of type '" + model_.type + "'",
                    "a model whose experts are a list: of type mixtral, qwen2_moe or qwen3_moe");
    }
    listed_ = &*known;
    for (const JsonValue& target : targets->is_array() ? targets->AsArray() : JsonValue::Array{*targets}) {
      const std::string name = target.is_string() ? "." + target.AsString() : "";
      if (name.ends_with("." + std::string(kGateUp)) || name.ends_with("." + std::string(kDown))) {
        targets_.push_back(name);
      } else {
        Refuse("target_parameters has " + WriteJson(target, 0),
               "parameters of stacked experts: gate_up_proj, down_proj");
      }
    }
  }

  static bool IsNothing(const JsonValue& value) {
    return value.is_null() || (value.is_bool() && !value.AsBool()) || (value.is_array() && value.AsArray().empty()) ||
           (value.is_object() && value.AsObject().empty());
  }

  double Number(const JsonValue& config, const char* key, double missing) {
    const JsonValue* value = config.Find(key);
    if (value == nullptr || value->is_null()) return missing;
    if (value->is_number() && std::isfinite(value->AsDouble())) return value->AsDouble();
    Refuse(std::string(key) + " is no number", "a number");
    return missing;
  }

  struct OfModules {
    std::string key;
    std::unique_ptr<RE2> ends;  // matches a full path
    double value = 0;
  };

  void ReadPatterns(const JsonValue& config, const char* key, std::vector<OfModules>& out) {
    const JsonValue* patterns = config.Find(key);
    if (patterns == nullptr || patterns->is_null()) return;
    if (!patterns->is_object()) {
      Refuse(std::string(key) + " is no object", "an object of numbers, by ends of paths of modules");
      return;
    }
    RE2::Options quiet;
    quiet.set_log_errors(false);
    for (const auto& [text, value] : patterns->AsObject()) {
      auto ends = std::make_unique<RE2>("(?:.*\\.)?(?:" + text + ")", quiet);
      if (!ends->ok() || !value.is_number()) {
        Refuse(std::string(key) + " has '" + text + "', which is no expression with a number",
               "numbers, by expressions");
        continue;
      }
      out.push_back({text, std::move(ends), value.AsDouble()});
    }
  }

  // The value for a module; `missing` if no key is for it.
  double ValueFor(const std::vector<OfModules>& patterns, const char* key, const std::string& module, double missing) {
    const OfModules* first = nullptr;
    for (const OfModules& one : patterns) {
      if (!RE2::FullMatch(module, *one.ends)) continue;
      if (first != nullptr && first->value != one.value) {
        Refuse(std::string("'") + module + "' has two values in " + key + ", by '" + first->key + "' and '" + one.key +
                   "'",
               "one key for each module");
      }
      if (first == nullptr) first = &one;
    }
    return first == nullptr ? missing : first->value;
  }

  // --- adapter_model.safetensors

  void ReadNames(const Checkpoint& checkpoint) {
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      std::string_view name = tensor.name;
      const bool known = name.starts_with(kPrefix);
      if (known) name.remove_prefix(kPrefix.size());
      const auto form = std::ranges::find_if(kForms, [&](const Form& one) { return name.ends_with(one.ending); });
      if (!known || form == std::end(kForms)) {
        Add(Finding::kMissingTensor, "tensor '" + tensor.name + "' is no factor of a Linear module or a lookup",
            weights_)
            .required = std::string(kPrefix) +
                        "PATH.lora_A.weight and .lora_B.weight, or PATH.lora_embedding_A and "
                        ".lora_embedding_B";
        continue;
      }
      const bool first = form->first;
      const std::string module(name.substr(0, name.size() - form->ending.size()));
      const StoredTensor*& factor = first ? factors_[module].a : factors_[module].b;
      if (factor != nullptr ||
          (factors_[module].form != nullptr && factors_[module].form->looks_up != form->looks_up)) {
        Add(Finding::kMissingTensor, "'" + module + "' has factors of a Linear module and of a lookup", weights_);
        continue;
      }
      factor = &tensor;
      factors_[module].form = form;
      out_.made_of[module + (first ? ".lora_A." : ".lora_B.") + out_.name] = TensorOf(tensor);
    }
    for (const auto& [module, factors] : factors_) CheckShapes(module, factors);
    if (factors_.empty() && !HasErrors(found_)) Add(Finding::kMissingTensor, "the adapter has no factors", weights_);
  }

  void CheckShapes(const std::string& module, const Factors& factors) {
    if (factors.a == nullptr || factors.b == nullptr) {
      Add(Finding::kMissingTensor,
          "'" + module + "' has no " + (factors.a == nullptr ? "lora_A" : "lora_B") + " in the adapter", weights_);
      return;
    }
    if (factors.a->shape.size() == 2 && factors.b->shape.size() == 2 && factors.a->shape[0] == factors.b->shape[1])
      return;
    Diagnostic& d = Add(Finding::kTensorMismatch, "the factors of '" + module + "' do not fit together", weights_);
    d.declared = "lora_A " + ShapeToString(factors.a->shape) + ", lora_B " + ShapeToString(factors.b->shape);
    d.required = "lora_A [rank, in], lora_B [out, rank]";
  }

  // --- stacked experts

  // The adapted parameters of a module of stacked experts, the inner one first: in the order of the module.
  std::vector<std::string_view> TargetsIn(const std::string& block) const {
    std::vector<std::string_view> out;
    for (const std::string_view parameter : {kGateUp, kDown}) {
      const std::string path = "." + block + "." + std::string(parameter);
      if (std::ranges::any_of(targets_, [&](const std::string& target) { return path.ends_with(target); }))
        out.push_back(parameter);
    }
    return out;
  }

  // Replaces factors of stacked experts by those of each expert. A target may be the name of a parameter alone, which
  // other modules have as their name: only the block of the stacks has such parameters.
  void Unstack() {
    if (listed_ == nullptr) return;
    for (auto one = factors_.begin(); one != factors_.end();) {
      const std::string& module = one->first;
      std::string block = module;
      size_t depth = 0;
      for (; block.ends_with(kInner); ++depth) block.resize(block.size() - kInner.size());
      if (!block.ends_with(listed_->stack) || one->second.a == nullptr || one->second.b == nullptr) {
        ++one;
        continue;
      }
      const std::vector<std::string_view> targets = TargetsIn(block);
      if (depth >= targets.size()) {
        Add(Finding::kMissingTensor, "target_parameters has no parameter for the factors of '" + module + "'", weights_)
            .required = "parameters of 'PATH" + std::string(listed_->stack) + "'";
      } else {
        SplitStack(block, targets[targets.size() - 1 - depth], one->second);
      }
      for (const char* factor : {".lora_A.", ".lora_B."}) out_.made_of.erase(module + factor + out_.name);
      one = factors_.erase(one);
    }
  }

  // A [rank * experts, in] has the rows of one expert after those of the other; B [out, rank * experts] has the columns
  // of one rank, of all experts, after those of the other. Both projections of gate_up_proj have one A.
  void SplitStack(const std::string& block, std::string_view parameter, const Factors& factors) {
    const std::string target = block + "." + std::string(parameter);
    const double declared = ValueFor(ranks_, "rank_pattern", target, rank_);
    const auto rank = static_cast<int64_t>(declared);
    const int64_t experts = model_.experts.value_or(listed_->experts);
    const bool matrices = factors.a->shape.size() == 2 && factors.b->shape.size() == 2;
    if (!matrices || declared < 1 || declared != static_cast<double>(rank) || experts < 1 ||
        factors.a->shape[0] % rank != 0 || factors.a->shape[0] / rank != experts ||
        factors.b->shape[1] != factors.a->shape[0] || (parameter == kGateUp && factors.b->shape[0] % 2 != 0)) {
      Diagnostic& d = Add(Finding::kTensorMismatch, "the factors of '" + target + "' do not fit the config", weights_);
      d.declared = "lora_A " + ShapeToString(factors.a->shape) + ", lora_B " + ShapeToString(factors.b->shape);
      const std::string rows = ShortestText(declared) + " * " + std::to_string(experts);
      d.required = "lora_A [" + rows + ", in], lora_B [" + (parameter == kGateUp ? "2 * size" : "out") + ", " + rows +
                   "]: of rank " + ShortestText(declared) + " in the adapter's config, and " + std::to_string(experts) +
                   " experts in the model's";
      return;
    }
    const int64_t half = factors.b->shape[0] / 2;
    const double alpha = ValueFor(alphas_, "alpha_pattern", target, alpha_);
    const std::string list = block.substr(0, block.size() - listed_->stack.size()) + std::string(listed_->list) + ".";
    for (int64_t expert = 0; expert < experts; ++expert) {
      const auto add = [&](std::string_view projection, WeightRecipe second) {
        const std::string path = list + std::to_string(expert) + "." + std::string(projection);
        out_.made_of[path + ".lora_A." + out_.name] = SliceOf(TensorOf(*factors.a), expert * rank, (expert + 1) * rank);
        out_.made_of[path + ".lora_B." + out_.name] = std::move(second);
        modules_[{rank, alpha}].push_back(path);
      };
      const WeightRecipe second = SecondOf(*factors.b, experts, expert);
      if (parameter == kGateUp) {
        add(listed_->gate, SliceOf(second, 0, half));
        add(listed_->up, SliceOf(second, half, 2 * half));
      } else {
        add(listed_->down, second);
      }
    }
  }

  // --- sections

  void AddSections() {
    for (const auto& [module, factors] : factors_) {
      if (factors.a == nullptr || factors.a->shape.size() != 2) continue;
      const int64_t rank = factors.a->shape[0];
      const double declared = ValueFor(ranks_, "rank_pattern", module, rank_);
      if (static_cast<double>(rank) != declared) {
        Diagnostic& d = Add(Finding::kTensorMismatch,
                            "the factors of '" + module + "' have another rank than the config", weights_);
        d.declared = ShortestText(declared);
        d.required = std::to_string(rank);
      }
      modules_[{rank, ValueFor(alphas_, "alpha_pattern", module, alpha_)}].push_back(module);
    }
    for (auto& [of, paths] : modules_) {
      std::ranges::sort(paths);
      Adapter section;
      section.name = out_.name;
      section.rank = of.first;
      section.alpha = of.second;
      section.dropout = dropout_;
      section.rslora = rslora_;
      section.source.file = file_;
      for (const std::string& pattern : PatternsOf(paths)) {
        section.modules.push_back({pattern, PatternSyntax::kGlob, section.source});
      }
      for (const std::string& path : paths) out_.section_of[path] = out_.sections.size();
      out_.sections.push_back(std::move(section));
    }
  }

  // Paths that differ in numbers become one pattern: "layers.{0..3}.experts.{0,2}.w1".
  static std::vector<std::string> PatternsOf(std::vector<std::string> paths) {
    for (size_t before = paths.size() + 1; paths.size() < before;) {
      before = paths.size();
      paths = InOneNumber(paths);
    }
    return paths;
  }

  // Paths, or patterns, that differ in their first number become one pattern.
  static std::vector<std::string> InOneNumber(const std::vector<std::string>& paths) {
    std::map<std::pair<std::string, std::string>, std::set<int64_t>> numbers;  // by what is before and behind
    std::vector<std::string> out;
    for (const std::string& path : paths) {
      const std::vector<std::string> parts = Split(path, '.');
      const auto number = std::ranges::find_if(parts, [](const std::string& part) {
        constexpr size_t kMostDigits = 6;
        return !part.empty() && part.size() <= kMostDigits && (part == "0" || part[0] != '0') &&
               std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
      });
      if (number == parts.end()) {
        out.push_back(path);
        continue;
      }
      const auto join = [](auto begin, auto end) { return Join(std::vector<std::string>(begin, end), "."); };
      numbers[{join(parts.begin(), number), join(number + 1, parts.end())}].insert(std::stoll(*number));
    }
    for (const auto& [around, found] : numbers) {
      std::string text = std::to_string(*found.begin());
      if (found.size() > 1) {
        std::vector<std::string> each;
        for (const int64_t one : found) each.push_back(std::to_string(one));
        const bool range = *found.rbegin() - *found.begin() + 1 == static_cast<int64_t>(found.size());
        text = "{" + (range ? each.front() + ".." + each.back() : Join(each, ",")) + "}";
      }
      const auto& [before, behind] = around;
      out.push_back((before.empty() ? "" : before + ".") + text + (behind.empty() ? "" : "." + behind));
    }
    std::ranges::sort(out);
    return out;
  }

  std::string file_;
  std::string weights_;
  HeaderOptions options_;
  AdaptedModel model_;
  const ListedExperts* listed_ = nullptr;  // if the adapter has target_parameters
  std::vector<std::string> targets_;       // of target_parameters: ".mlp.experts.down_proj"
  bool refuses_stacks_ = false;            // of an adapter with target_parameters
  double rank_ = 0;
  double alpha_ = 0;
  double dropout_ = 0;
  bool rslora_ = false;
  std::vector<OfModules> ranks_;
  std::vector<OfModules> alphas_;
  std::map<std::string, Factors> factors_;
  std::map<std::pair<int64_t, double>, std::vector<std::string>> modules_;  // by rank and alpha
  StoredAdapter out_;
  Diagnostics found_;
};

}  // namespace

AdaptedModel AdaptedModelOf(const ModelConfig& config, bool is_program) {
  AdaptedModel out{.type = config.model_type(), .experts = std::nullopt, .is_program = is_program};
  for (const char* key : {"num_local_experts", "num_experts"}) {
    const JsonValue* experts = config.Get(key);
    if (!out.experts && experts != nullptr && experts->is_int()) out.experts = experts->AsInt();
  }
  return out;
}

Result<StoredAdapter> ReadAdapter(const std::string& folder, HeaderOptions options, const std::string& name,
                                  const AdaptedModel& model) {
  Check(IsAdapterName(name), "not a name of an adapter");
  return AdapterReader(folder, options, name, model).Run();
}

std::optional<RecipeTensor> FactorSource::Find(const std::string& name) const { return file_.Find(name); }

// A reshape reads its input in full, once for each expert of the stack.
Failure FactorSource::Read(const std::string& name, const std::vector<std::vector<Interval>>& dims, void* to) {
  const std::optional<RecipeTensor> tensor = file_.Find(name);
  Check(tensor.has_value(), "a tensor of an adapter that is not in its file");
  if (dims != FullShard(tensor->shape)) return file_.Read(name, dims, to);
  auto found = std::ranges::find(kept_, name, &Kept::name);
  if (found == kept_.end()) {
    Kept made = {name, std::vector<char>(static_cast<size_t>(ShardBytes(tensor->dtype, dims)))};
    if (Failure failed = file_.Read(name, dims, made.bytes.data())) return failed;
    if (kept_.size() == kMostKept) kept_.erase(kept_.begin());
    kept_.push_back(std::move(made));
    found = kept_.end() - 1;
  }
  std::ranges::copy(found->bytes, static_cast<char*>(to));
  return std::nullopt;
}

}  // namespace moonshard
