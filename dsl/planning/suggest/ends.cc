#include "dsl/planning/suggest/ends.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>

#include "dsl/planning/suggest/layer.h"
#include "dsl/planning/suggest/words.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

bool Says(const std::string& path, std::initializer_list<const char*> words) {
  std::string last = path.substr(path.rfind('.') + 1);
  std::ranges::transform(last, last.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(words, [&](const char* word) { return last.find(word) != std::string::npos; });
}

bool SaysEmbedding(const std::string& path) {
  return Says(path, {"embed", "wte", "tok", "word", "shared", "vocab"}) && !Says(path, {"out", "pos", "unembed"});
}

// BLT's `patch_embedding_projection`: a linear layer that may have as many rows as a small vocabulary.
bool ProjectsEmbeddings(const std::string& path) { return Says(path, {"embed"}) && Says(path, {"proj"}); }

bool SaysHead(const std::string& path) {
  // BERT's is `cls.predictions.decoder`, which makes logits of the vocabulary; XLM's `pred_layer.proj`.
  return Says(path, {"head", "out", "unembed", "score", "classifier", "lm_loss"}) || path == "decoder" ||
         path.ends_with(".decoder") || path.ends_with("pred_layer.proj");
}

std::optional<std::vector<int64_t>> WeightOf(const Item& item) {
  const auto weight = std::ranges::find(*item.parameters, "weight", &Parameter::name);
  const bool others =
      std::ranges::any_of(*item.parameters, [](const Parameter& p) { return p.name != "weight" && p.name != "bias"; });
  if (others || weight == item.parameters->end() || weight->shape.size() != 2) return std::nullopt;
  return weight->shape;
}

Block Single(Part part, const std::string& path, const std::string& why, bool sure) {
  Block block;
  block.decisions.push_back(Decide(part, {path}));
  block.why = why;
  block.sure = sure;
  return block;
}

// The vocabulary connects the ends: a matrix of hidden features with one row per token is the embedding or the head.
// config.json has its size; otherwise the first matrix with an embedding's name does. Names then separate the two,
// which have the same shape. Tables of positions and of token types have that shape too if their size happens to be
// equal, so their names exclude them.
class Reader {
 public:
  Reader(const ModelNumbers& numbers, int64_t hidden, const std::vector<std::string>& stacks)
      : vocabulary_(numbers.vocabulary.value), hidden_(hidden) {
    for (const std::string& stack : stacks) {
      folders_.insert(std::string(ParentOf(stack)));
      stacks_.insert(stack);
    }
  }

  Ends Read(const Outline& outline) {
    for (const Item& item : outline.outside) {
      const std::optional<std::vector<int64_t>> weight = WeightOf(item);
      if (vocabulary_ == 0 && weight && weight->back() == hidden_ && SaysEmbedding(item.name))
        vocabulary_ = weight->front();
    }
    for (const Item& item : outline.outside) {
      if (IsOtherSense(item.name) || !Take(item)) ends_.rest.push_back(item.name);
    }
    return std::move(ends_);
  }

 private:
  // Whether a directory holds a stack, or is a number among its layers.
  bool IsBesideLayers(const std::string& folder) const {
    const std::string last = folder.substr(folder.rfind('.') + 1);
    const bool number = !last.empty() && last.find_first_not_of("0123456789") == std::string::npos;
    return folders_.contains(folder) || (number && stacks_.contains(std::string(ParentOf(folder))));
  }

  bool Take(const Item& item) {
    if (item.VectorSize() == hidden_ && IsNormName(item.name) && !Says(item.name, {"emb"}) &&
        IsBesideLayers(std::string(ParentOf(item.name)))) {
      ends_.last.insert(ends_.last.begin(), Single(Part::kNorm, item.name, "the norm after the last layer", true));
      return true;
    }
    const std::optional<std::vector<int64_t>> weight = WeightOf(item);
    if (!weight || Says(item.name, {"pos", "wpe", "type"}) || ProjectsEmbeddings(item.name)) return false;
    const int64_t rows = weight->front();
    // A vocabulary may be padded.
    const bool full_vocabulary = vocabulary_ > 0 && rows >= vocabulary_ && rows < vocabulary_ + 1024;
    const bool head = SaysHead(item.name);
    if (weight->back() != hidden_) {
      // Beside a projection from or to the hidden features.
      if (!full_vocabulary) return false;
      return SaysEmbedding(item.name) ? TakeEmbedding(item, rows) : head && TakeHead(item, rows, true, head);
    }
    if (full_vocabulary && !head && (!has_embedding_ || SaysEmbedding(item.name))) return TakeEmbedding(item, rows);
    if (full_vocabulary || Says(item.name, {"score"}) || (vocabulary_ == 0 && head))
      return TakeHead(item, rows, full_vocabulary, head);
    return false;
  }

  bool TakeEmbedding(const Item& item, int64_t rows) {
    if (item.parameters->size() > 1) return false;  // an embedding has no bias
    has_embedding_ = true;
    const bool sure = SaysEmbedding(item.name);
    ends_.first.push_back(Single(Part::kEmbedding, item.name,
                                 "the embedding: its " + std::to_string(rows) +
                                     " rows are the vocabulary; ids whose row is on another rank give zeros",
                                 sure));
    return true;
  }

  bool TakeHead(const Item& item, int64_t rows, bool logits, bool named) {
    ends_.has_logits |= logits;
    ends_.last.push_back(Single(Part::kHead, item.name,
                                logits
                                    ? "the head: logits over the " + std::to_string(rows) + " tokens of the vocabulary"
                                    : "the head of a classifier with " + std::to_string(rows) + " classes",
                                named));
    return true;
  }

  int64_t vocabulary_;
  int64_t hidden_;
  std::set<std::string> folders_;  // that hold the stacks
  std::set<std::string> stacks_;   // their own paths
  bool has_embedding_ = false;
  Ends ends_;
};

}  // namespace

Ends ReadEnds(const Outline& outline, const ModelNumbers& numbers, int64_t hidden,
              const std::vector<std::string>& stacks) {
  return Reader(numbers, hidden, stacks).Read(outline);
}

}  // namespace moonshard
