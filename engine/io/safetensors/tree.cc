// A module tree from the names in a checkpoint, without the model's code: a path up to the last dot is a module, the
// rest is its parameter. What names do not give is inferred, each from evidence that holds for Hugging Face models:
//   buffers   by name, or by the shape of a mask
//   kinds     Embedding, Linear or Norm, from the name and the number of dims of the weight
//   ties      the head shares the embedding's tensor if config.json declares it, if its bias alone is stored, or if no
//             head is stored and the model type ties by default
//   order     components as text, numbers as numbers: layer 10 comes after layer 9
// The tree is marked incomplete: it lacks modules without parameters, which later stages know.
#include "engine/io/safetensors/tree.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <string_view>
#include <utility>

namespace moonshard {
namespace {

constexpr std::string_view kHead = "lm_head";
constexpr std::string_view kWeight = "weight";
constexpr std::string_view kBias = "bias";
// Last components of the token embedding's path, in Hugging Face models.
constexpr std::array<std::string_view, 6> kTokenEmbeddings = {"embed_tokens", "wte",       "word_embeddings",
                                                              "embed_in",     "embedding", "tok_embeddings"};
// Decoder model types whose configuration class in transformers 5.18 has tie_word_embeddings = True.
constexpr std::array<std::string_view, 17> kTiedByDefault = {
    "bloom",       "cohere",  "cohere2", "falcon", "gemma",      "gemma2", "gemma3",  "gemma3_text", "gpt2",
    "gpt_bigcode", "gpt_neo", "lfm2",    "mpt",    "openai-gpt", "opt",    "smollm3", "starcoder2"};
constexpr std::array<std::string_view, 7> kBuffers = {"inv_freq",    "original_inv_freq", "running_mean",
                                                      "running_var", "masked_bias",       "num_batches_tracked",
                                                      "position_ids"};

// Not trained: by name, or as masks are: of truth values, or over all pairs of positions whatever the batch and the
// head (GPT-2's attn.bias [1, 1, n, n]).
bool IsBufferOfHuggingFace(const Parameter& parameter) {
  const std::vector<int64_t>& shape = parameter.shape;
  const bool pairs = shape.size() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3] && shape[2] > 1;
  return std::ranges::find(kBuffers, parameter.name) != kBuffers.end() || parameter.dtype == DType::kBool ||
         (pairs && parameter.name != "weight");
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNumber(std::string_view component) { return !component.empty() && std::ranges::all_of(component, IsDigit); }

std::string_view LastComponent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::strong_ordering CompareComponents(std::string_view a, std::string_view b) {
  if (IsNumber(a) && IsNumber(b)) {
    const std::string_view x = a.substr(std::min(a.find_first_not_of('0'), a.size()));
    const std::string_view y = b.substr(std::min(b.find_first_not_of('0'), b.size()));
    if (x.size() != y.size()) return x.size() <=> y.size();
    if (x != y) return x <=> y;
  }
  return a <=> b;
}

// Component by component, numbers as numbers; a module before those inside it.
struct NaturalOrder {
  bool operator()(std::string_view a, std::string_view b) const {
    while (true) {
      const size_t end_a = std::min(a.find('.'), a.size());
      const size_t end_b = std::min(b.find('.'), b.size());
      const std::strong_ordering order = CompareComponents(a.substr(0, end_a), b.substr(0, end_b));
      if (order != 0) return order < 0;
      if (end_a == a.size() || end_b == b.size()) return end_a == a.size() && end_b < b.size();
      a.remove_prefix(end_a + 1);
      b.remove_prefix(end_b + 1);
    }
  }
};

int PlaceInModule(const Parameter& parameter) {
  return parameter.name == kWeight ? 0 : parameter.name == "bias" ? 1 : 2;
}

std::string GuessKind(std::string_view path, const ModuleTree::Signature& parameters) {
  const auto weight = std::ranges::find(parameters, kWeight, &Parameter::name);
  if (weight == parameters.end()) return "";
  const std::string_view last = LastComponent(path);
  const size_t rank = weight->shape.size();
  const bool embeds = last.starts_with("embed") && last != "embed_out";  // that one is GPT-NeoX's head
  // T5 looks up a bias for each head by distance.
  const bool table =
      last == "wte" || last == "wpe" || last == "relative_attention_bias" || last.ends_with("_embeddings");
  if (rank == 2 && (embeds || table)) return "Embedding";
  if (rank == 2) return "Linear";
  const bool others = std::ranges::any_of(parameters, [](const Parameter& p) { return p.shape.size() != 1; });
  return rank == 1 && !others ? "Norm" : "";
}

bool TiesHead(const ModelConfig& config, bool head_stored) {
  // A classifier has a head of its own kind, whatever the field declares for the language model.
  if (!head_stored && config.architecture().ends_with("Classification")) return false;
  if (const std::optional<bool> tie = config.tie_word_embeddings()) return *tie;
  return !head_stored &&
         (config.architecture().ends_with("ForCausalLM") ||
          config.architecture().ends_with("ForConditionalGeneration")) &&
         std::ranges::find(kTiedByDefault, config.model_type()) != kTiedByDefault.end();
}

// The module whose weight is the token embedding: the first of the usual names. nullptr where there is none.
const std::string* FindEmbedding(const std::map<std::string, ModuleTree::Signature, NaturalOrder>& modules) {
  for (std::string_view name : kTokenEmbeddings) {
    for (const auto& [path, parameters] : modules) {
      if (LastComponent(path) != name) continue;
      const auto weight = std::ranges::find(parameters, kWeight, &Parameter::name);
      if (weight != parameters.end() && weight->shape.size() == 2) return &path;
    }
  }
  return nullptr;
}

// The path of the head, stored or not: "5.lm_head" where that is the only one of the name.
std::string FindHead(const std::map<std::string, ModuleTree::Signature, NaturalOrder>& modules) {
  std::vector<std::string> named;
  for (const auto& [path, parameters] : modules) {
    if (LastComponent(path) == kHead) named.push_back(path);
  }
  return named.size() == 1 ? named.front() : std::string(kHead);
}

// A head whose bias alone is stored, of one number for each row of the embedding, has the embedding as its weight: as
// itself (ELECTRA's `generator_lm_head`), or, where other modules lie beside the bias, as their `decoder`, whose bias
// is the one around it (BERT's `cls.predictions`, RoBERTa's `lm_head`). Empty: there is none, or more than one.
struct HeadOfBias {
  std::string around;  // owns the bias
  std::string path;    // of the head
};

HeadOfBias FindHeadOfBias(const std::map<std::string, ModuleTree::Signature, NaturalOrder>& modules, int64_t rows) {
  HeadOfBias out;
  for (const auto& [path, parameters] : modules) {
    const Parameter& bias = parameters.front();
    if (parameters.size() != 1 || bias.name != kBias || bias.shape != std::vector<int64_t>{rows}) continue;
    if (!out.path.empty()) return {};
    const std::string prefix = path + ".";
    const bool holds = std::ranges::any_of(modules, [&](const auto& other) { return other.first.starts_with(prefix); });
    out = {path, holds ? prefix + "decoder" : path};
  }
  return modules.contains(out.path) && out.path != out.around ? HeadOfBias() : out;
}

}  // namespace

bool NamesTokenEmbedding(std::string_view path) {
  return std::ranges::find(kTokenEmbeddings, LastComponent(path)) != kTokenEmbeddings.end();
}

ModuleTree TreeFromCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::map<std::string, ModuleTree::Signature, NaturalOrder> modules;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const size_t dot = tensor.name.rfind('.');
    Parameter parameter;
    parameter.name = LastComponent(tensor.name);
    parameter.shape = tensor.shape;
    parameter.dtype = tensor.dtype;
    parameter.is_buffer = IsBufferOfHuggingFace(parameter);
    modules[dot == std::string::npos ? "" : tensor.name.substr(0, dot)].push_back(std::move(parameter));
  }
  for (auto& [path, parameters] : modules) std::ranges::stable_sort(parameters, {}, PlaceInModule);

  std::string head = FindHead(modules);
  const std::string* embedding = FindEmbedding(modules);
  const auto weight_of = [&](const std::string& path) {
    return *std::ranges::find(modules.at(path), kWeight, &Parameter::name);
  };
  HeadOfBias of_bias;
  if (embedding && config.tie_word_embeddings().value_or(true)) {
    of_bias = FindHeadOfBias(modules, weight_of(*embedding).shape[0]);
  }
  const bool head_stored = modules.contains(head) && of_bias.path.empty();
  if (!of_bias.path.empty()) {
    head = of_bias.path;
    ModuleTree::Signature signature = {weight_of(*embedding), modules.at(of_bias.around).front()};
    modules[head] = std::move(signature);
  } else if (!TiesHead(config, head_stored)) {
    embedding = nullptr;
  } else if (embedding && !head_stored) {
    ModuleTree::Signature signature = {weight_of(*embedding)};
    modules[head] = std::move(signature);
  }
  ModuleTree tree;
  for (auto& [path, parameters] : modules) {
    std::string kind = GuessKind(path, parameters);
    tree.Add(path, std::move(kind), parameters);
  }
  // A stored head of another shape is not a copy of the embedding, whatever the config declares.
  const auto tie = [&](const std::string& a, const std::string& b, std::string_view name) {
    ParamRef one;
    ParamRef other;
    const std::string suffix = "." + std::string(name);
    const bool both = tree.FindParameter(a + suffix, &one) && tree.FindParameter(b + suffix, &other);
    if (both && a != b && tree.At(one).shape == tree.At(other).shape) tree.AddTie({one, other});
  };
  if (embedding) tie(*embedding, head, kWeight);
  if (!of_bias.path.empty()) tie(of_bias.around, head, kBias);
  tree.set_complete(false);
  return tree;
}

}  // namespace moonshard
