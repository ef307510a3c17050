// CollectiveLabel: the purpose of a collective, as errors show it: "model.layers.0.mlp.down_proj output 0
// (plans/llama.lua:18)". Ranks compare its hash before a collective, so it must be the same on every rank.
#pragma once

#include <cstdint>
#include <string>

namespace moonshard {

class CollectiveLabel {
 public:
  explicit CollectiveLabel(std::string text);
  const std::string& text() const { return text_; }
  uint64_t hash() const { return hash_; }

 private:
  std::string text_;
  uint64_t hash_;
};

}  // namespace moonshard
