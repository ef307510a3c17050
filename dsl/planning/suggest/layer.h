// Layer: reads one kind of layer, module by module, into blocks. What a reader takes, the ones after it do not see; each
// takes only what it can explain whole, and what is left over stays on every rank.
// Stage before: outline.h, numbers.h. Stage after: write.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dsl/planning/suggest/block.h"
#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/words.h"

namespace moonshard {

// A linear module of the layer.
struct LayerLinear {
  size_t item = 0;
  Linear shape;
  Named named;
};

class Layer {
 public:
  // `whole_attention`: directories whose attention stays whole in every layer, with the reason.
  Layer(const LayerKind& kind, const ModelNumbers& numbers, int64_t hidden, bool turned,
        std::map<std::string, std::string> full_attention = {});

  // All blocks, in the order in which a plan says them.
  std::vector<Block> Read();

  const ModelNumbers& numbers() const { return numbers_; }
  int64_t hidden() const { return hidden_; }
  bool turned() const { return turned_; }
  const std::map<std::string, std::string>& full_attention() const { return full_attention_; }
  const Item& item(size_t index) const { return kind_.items[index]; }
  const std::string& name(size_t index) const { return kind_.items[index].name; }

  // Items in a directory that nobody took, by their index.
  std::vector<size_t> Left(const std::string& folder) const;
  // The linear modules among them that are no experts.
  std::vector<LayerLinear> Linears(const std::string& folder) const;
  void Take(size_t item) { taken_[item] = true; }
  // Takes all that is left in a directory: it stays whole, for this reason.
  Block LeaveUnsharded(const std::string& folder, const std::string& why);

 private:
  const LayerKind& kind_;
  const ModelNumbers& numbers_;
  int64_t hidden_;
  bool turned_;
  std::map<std::string, std::string> full_attention_;
  std::vector<bool> taken_;
};

// The readers. Each adds its blocks and takes their modules.
void ReadLatentAttention(Layer& layer, std::vector<Block>& blocks);
void ReadAttention(Layer& layer, std::vector<Block>& blocks);
void ReadExperts(Layer& layer, std::vector<Block>& blocks);
void ReadFeedForward(Layer& layer, std::vector<Block>& blocks);
void ReadNorms(Layer& layer, std::vector<Block>& blocks);
void ReadRest(Layer& layer, std::vector<Block>& blocks);

// One decision about modules by their names.
Decision Decide(Part part, std::vector<std::string> names, Number heads = {});
// The last component of a path; "its own parameter" for the layer itself.
std::string ShortName(const std::string& path);

}  // namespace moonshard
