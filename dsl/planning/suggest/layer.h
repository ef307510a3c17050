// Layer: splits one kind of layer into blocks. Each reader marks the modules of one kind of block as taken, and later
// readers skip taken modules. A reader shards a block only if every module of the block is recognized; all other
// modules are replicated or, if they are linear, sharded by rows (rows.h).
// Stage before: outline.h, numbers.h. Stage after: write.h.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dsl/planning/suggest/block.h"
#include "dsl/planning/suggest/outline.h"
#include "dsl/planning/suggest/words.h"
#include "engine/layout/data_flow.h"

namespace moonshard {

// A linear module of the layer.
struct LayerLinear {
  size_t item = 0;
  Linear shape;
  Named named;
};

// The data flow between the modules of a layer, if it is known (the model is an exported program). `path`: the path of
// one layer of this kind.
struct LayerFlow {
  std::shared_ptr<const DataFlow> flow;  // null: not known
  std::string path;
};

class Layer {
 public:
  // `full_attention`: paths of attention modules that stay replicated in every layer, each with the reason.
  Layer(const LayerKind& kind, const ModelNumbers& numbers, int64_t hidden, bool turned, const LayerFlow& flow,
        std::map<std::string, std::string> full_attention = {});

  // Returns all blocks, in their order in the plan.
  std::vector<Block> Read();

  const ModelNumbers& numbers() const { return numbers_; }
  int64_t hidden() const { return hidden_; }
  bool turned() const { return turned_; }
  const std::map<std::string, std::string>& full_attention() const { return full_attention_; }
  const Item& item(size_t index) const { return kind_.items[index]; }
  const std::string& name(size_t index) const { return kind_.items[index].name; }

  // Whether the layer's data flow is known.
  bool knows_flow() const { return knows_flow_; }
  // Whether the output of item `from` reaches item `to` through modules without a matrix, and not through the residual
  // stream. FeedsElementwise: whether this is so with only elementwise operators and reshapes between the items. Both
  // functions return true if the flow is not known.
  bool Feeds(size_t from, size_t to) const;
  bool FeedsElementwise(size_t from, size_t to) const;

  // The indices of the items at or below the path `folder` that no reader has taken.
  std::vector<size_t> Left(const std::string& folder) const;
  // The linear modules among the items of Left(folder) that are not experts.
  std::vector<LayerLinear> Linears(const std::string& folder) const;
  void Take(size_t item) { taken_[item] = true; }
  // Takes the items of Left(folder). Returns a block in which these items are replicated; `why` is the reason in the
  // comment of the block.
  Block LeaveUnsharded(const std::string& folder, const std::string& why);

 private:
  const LayerKind& kind_;
  const ModelNumbers& numbers_;
  int64_t hidden_;
  bool turned_;
  std::map<std::string, std::string> full_attention_;
  std::vector<bool> taken_;
  struct Step {
    std::string to;
    bool elementwise = true;
  };
  bool Reaches(size_t from, size_t to, bool elementwise) const;

  bool knows_flow_ = false;
  std::map<std::string, std::vector<Step>> steps_;  // by the name of the module in the layer from which the step starts
  std::set<std::string> matrices_;                  // names of items that own a matrix
};

// The readers. Each reader adds the blocks that it finds to `blocks` and takes the modules of these blocks.
void ReadLatentAttention(Layer& layer, std::vector<Block>& blocks);
void ReadAttention(Layer& layer, std::vector<Block>& blocks);
void ReadShortConvolutions(Layer& layer, std::vector<Block>& blocks);
void ReadExperts(Layer& layer, std::vector<Block>& blocks);
void ReadFeedForward(Layer& layer, std::vector<Block>& blocks);
void ReadNorms(Layer& layer, std::vector<Block>& blocks);
void ReadRest(Layer& layer, std::vector<Block>& blocks);

// Returns a decision for the modules with these names.
Decision Decide(Part part, std::vector<std::string> names, Number heads = {});
// The last component of a path; "its own parameter" for the empty path, which is the layer itself.
std::string ShortName(const std::string& path);

}  // namespace moonshard
