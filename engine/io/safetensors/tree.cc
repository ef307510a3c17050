// A module tree from the names in a checkpoint, without the model's code: a path up to the last dot is a module, the
// rest is its parameter. What names do not give is inferred, each from evidence that holds for Hugging Face models:
//   buffers   by name, or by the shape of a mask
//   kinds     Embedding, Linear or Norm, from the name and the number of dims of the weight
//   ties      the head shares the embedding's tensor if config.json declares it, if its bias alone is stored, or if no
//             head is stored and the model type ties by default; so do the embeddings of an encoder and a decoder
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
constexpr std::array<std::string_view, 9> kTokenEmbeddings = {
    "embed_tokens",   "wte",          "word_embeddings", "embed_in",  "embedding",
    "tok_embeddings", "tokens_embed", "word_embedding",  "embeddings"};
// Decoder model types whose configuration class in transformers 5.18 has tie_word_embeddings = True.
constexpr std::array<std::string_view, 17> kTiedByDefault = {
    "bloom",       "cohere",  "cohere2", "falcon", "gemma",      "gemma2", "gemma3",  "gemma3_text", "gpt2",
    "gpt_bigcode", "gpt_neo", "lfm2",    "mpt",    "openai-gpt", "opt",    "smollm3", "starcoder2"};
// The last four are of MiniMax's linear attention.
constexpr std::array<std::string_view, 11> kBuffers = {
    "inv_freq",     "original_inv_freq", "running_mean", "running_var", "masked_bias",   "num_batches_tracked",
    "position_ids", "slope_rate",        "query_decay",  "key_decay",   "diagonal_decay"};

// Paths of tied heads that are not called lm_head, in transformers 5.18, by the model type.
struct HeadOfType {
  std::string_view type;
  std::string_view head;
};
constexpr std::array<HeadOfType, 15> kHeads = {{{"bert-generation", "lm_head.decoder"},
                                                {"biogpt", "output_projection"},
                                                {"blip-2", "language_model.lm_head"},
                                                {"canary", "proj_out"},
                                                {"gpt_neox_japanese", "embed_out"},
                                                {"instructblip", "language_model.lm_head"},
                                                {"instructblipvideo", "language_model.lm_head"},
                                                {"kosmos-2", "text_model.lm_head"},
                                                {"kosmos-2.5", "text_model.lm_head"},
                                                {"moonshine", "proj_out"},
                                                {"speecht5", "text_decoder_postnet.lm_head"},
                                                {"t5gemma", "lm_head.out_proj"},
                                                {"t5gemma2", "lm_head.out_proj"},
                                                {"trocr", "output_projection"},
                                                {"whisper", "proj_out"}}};

// Modules that share the tensors of a stored one, by the ends of their paths: of "model.shared" they are
// "model.encoder.embed_tokens" and "model.decoder.embed_tokens". transformers writes a shared tensor once. An alias is
// there if the first module of its path holds others. `type`: only of this model type.
struct Alias {
  std::string_view stored;
  std::string_view alias;
  std::string_view type;
};
constexpr std::array<Alias, 8> kAliases = {{{"shared", "encoder.embed_tokens", ""},
                                            {"shared", "decoder.embed_tokens", ""},
                                            {"shared", "text_encoder.embed_tokens", ""},
                                            {"shared", "text_decoder.embed_tokens", ""},
                                            {"word_embeddings", "encoder.word_embeddings", "prophetnet"},
                                            {"word_embeddings", "decoder.word_embeddings", "prophetnet"},
                                            {"encoder.embed_tokens", "decoder.embed_tokens", "t5gemma2"},
                                            {"patch_embed.proj", "encoder.embed_patches.proj", "udop"}}};

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
  const bool table = last == "wte" || last == "wpe" || last == "relative_attention_bias" || last == "shared" ||
                     last == "tokens_embed" || last == "word_embedding" || last == "position_embedding" ||
                     last == "positions_embed" || last.ends_with("_embeddings");
  if (rank == 2 && (embeds || table)) return "Embedding";
  if (rank == 2) return "Linear";
  const bool others = std::ranges::any_of(parameters, [](const Parameter& p) { return p.shape.size() != 1; });
  return rank == 1 && !others ? "Norm" : "";
}

std::optional<bool> TieIn(const ModelConfig& config, std::string_view section) {
  const JsonValue* fields = config.Get(section);
  const JsonValue* tie = fields != nullptr && fields->is_object() ? fields->Find("tie_word_embeddings") : nullptr;
  return tie != nullptr && tie->is_bool() ? std::optional(tie->AsBool()) : std::nullopt;
}

// Whether the model is made of an encoder and a decoder of any type: "vision-encoder-decoder".
bool IsComposed(const ModelConfig& config) {
  const JsonValue* decoder = config.Get("decoder");
  return config.model_type().ends_with("encoder-decoder") && decoder != nullptr && decoder->is_object();
}

std::optional<bool> DeclaredTie(const ModelConfig& config) {
  if (IsComposed(config)) return TieIn(config, "decoder");
  return config.tie_word_embeddings();
}

bool TiesHead(const ModelConfig& config, bool head_stored) {
  // A classifier has a head of its own kind, whatever the field declares for the language model, and an encoder none.
  const std::string architecture = config.architecture();
  if (!head_stored && (architecture.ends_with("Classification") || architecture.ends_with("EncoderModel")))
    return false;
  if (const std::optional<bool> tie = DeclaredTie(config)) return *tie;
  if (!head_stored && TieIn(config, "text_config") == true) return true;
  return !head_stored &&
         (architecture.ends_with("ForCausalLM") || architecture.ends_with("ForConditionalGeneration")) &&
         std::ranges::find(kTiedByDefault, config.model_type()) != kTiedByDefault.end();
}

using Modules = std::map<std::string, ModuleTree::Signature, NaturalOrder>;

// The module whose weight is the token embedding: the first of the usual names. nullptr where there is none.
const std::string* FindEmbedding(const Modules& modules) {
  for (std::string_view name : kTokenEmbeddings) {
    for (const auto& [path, parameters] : modules) {
      if (LastComponent(path) != name) continue;
      const auto weight = std::ranges::find(parameters, kWeight, &Parameter::name);
      if (weight != parameters.end() && weight->shape.size() == 2) return &path;
    }
  }
  return nullptr;
}

// Adds the aliases that the file does not have, and gives each with the path of its tensors.
std::vector<std::pair<std::string, std::string>> AddAliases(const ModelConfig& config, Modules& modules) {
  std::vector<std::pair<std::string, std::string>> added;
  for (const Alias& entry : kAliases) {
    if (!entry.type.empty() && entry.type != config.model_type()) continue;
    for (const auto& [path, parameters] : modules) {
      if (path != entry.stored && !path.ends_with("." + std::string(entry.stored))) continue;
      const std::string before = path.substr(0, path.size() - entry.stored.size());
      const std::string alias = before + std::string(entry.alias);
      const std::string holder = before + std::string(entry.alias.substr(0, entry.alias.find('.') + 1));
      const auto inside = modules.upper_bound(holder.substr(0, holder.size() - 1));
      const bool holds = inside != modules.end() && inside->first.starts_with(holder);
      if (holds && !modules.contains(alias)) added.emplace_back(path, alias);
    }
  }
  for (const auto& [path, alias] : added) {
    ModuleTree::Signature signature = modules.at(path);
    modules.emplace(alias, std::move(signature));
  }
  return added;
}

std::string StoredAs(const std::string& path, const std::vector<std::pair<std::string, std::string>>& aliases) {
  const auto found = std::ranges::find(aliases, path, &std::pair<std::string, std::string>::second);
  return found == aliases.end() ? path : found->first;
}

// The path of the head, stored or not: "5.lm_head" where that is the only one of the name.
std::string FindHead(const Modules& modules, const ModelConfig& config) {
  const bool composed = IsComposed(config);
  const JsonValue* type = composed ? config.Get("decoder") : nullptr;
  type = type != nullptr ? type->Find("model_type") : config.Get("model_type");
  const auto of_type = std::ranges::find_if(kHeads, [&](const HeadOfType& entry) {
    return type != nullptr && type->is_string() && entry.type == type->AsString();
  });
  const std::string before = composed ? "decoder." : "";
  if (of_type != kHeads.end()) return before + std::string(of_type->head);
  std::vector<std::string> named;
  for (const auto& [path, parameters] : modules) {
    if (LastComponent(path) == kHead) named.push_back(path);
  }
  return named.size() == 1 ? named.front() : before + std::string(kHead);
}

// A head whose bias alone is stored, of one number for each row of the embedding, has the embedding as its weight: as
// itself (ELECTRA's `generator_lm_head`), or, where other modules lie beside the bias, as their `decoder`, whose bias
// is the one around it (BERT's `cls.predictions`, RoBERTa's `lm_head`). Empty: there is none, or more than one.
struct HeadOfBias {
  std::string around;  // owns the bias
  std::string path;    // of the head
};

HeadOfBias FindHeadOfBias(const Modules& modules, int64_t rows) {
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
  Modules modules;
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

  const std::vector<std::pair<std::string, std::string>> aliases = AddAliases(config, modules);
  std::string head = FindHead(modules, config);
  const std::string* embedding = FindEmbedding(modules);
  const auto weight_of = [&](const std::string& path) {
    return *std::ranges::find(modules.at(path), kWeight, &Parameter::name);
  };
  HeadOfBias of_bias;
  if (embedding && DeclaredTie(config).value_or(true)) {
    of_bias = FindHeadOfBias(modules, weight_of(*embedding).shape[0]);
    if (!of_bias.path.empty() && ParentOf(head) == of_bias.around) of_bias.path = head;
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
  // One tie for each tensor, of all its names. A stored head of another shape is not a copy of the embedding, whatever
  // the config declares.
  const auto tie = [&](const std::string& first, const std::vector<std::string>& others, std::string_view name) {
    std::vector<ParamRef> same(1);
    if (!tree.FindParameter(first + "." + std::string(name), same.data())) return;
    for (const std::string& path : others) {
      ParamRef other;
      const bool there = tree.FindParameter(path + "." + std::string(name), &other);
      if (there && path != first && tree.At(other).shape == tree.At(same.front()).shape) same.push_back(other);
    }
    if (same.size() > 1) tree.AddTie(std::move(same));
  };
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [path, alias] : aliases) names[path].push_back(alias);
  if (embedding) names[StoredAs(*embedding, aliases)].push_back(head);
  for (const auto& [path, others] : names) {
    for (const std::string_view name : {kWeight, kBias}) {
      if (name == kWeight || std::ranges::find(others, head) == others.end()) tie(path, others, name);
    }
  }
  if (!of_bias.path.empty()) tie(of_bias.around, {head}, kBias);
  tree.set_complete(false);
  return tree;
}

}  // namespace moonshard
