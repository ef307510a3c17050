// HeadCounts: the numbers of attention heads that a model's config declares, for the lints that compare a plan's heads
// with them. A config may declare several (text and vision, local and global attention), and does not name the modules
// that each of them is for. So a reading of the config applies to a block only if the feature sizes of the block's
// projections fit this reading and no other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard {

// One reading of the config.
struct HeadCount {
  int64_t heads = 0;      // of queries
  int64_t key_heads = 0;  // of keys and values; divides `heads`
  int64_t head_size = 0;  // features of a head
  int64_t hidden = 0;     // features of the residual stream, which the projections take
  std::string key;        // the field that gives key_heads: "num_key_value_heads", "text_config.num_attention_heads"
  bool operator==(const HeadCount&) const = default;
};

class HeadCounts {
 public:
  HeadCounts() = default;  // no readings
  // Reads hidden_size, num_attention_heads, num_key_value_heads, head_dim (hidden_size / num_attention_heads where it
  // is missing), num_global_key_value_heads and global_head_dim of the config and of every object in it whose key ends
  // with "config". There is no reading where a needed field is missing or not a positive integer, or where key_heads
  // does not divide heads.
  explicit HeadCounts(const JsonValue& config);

  const std::vector<HeadCount>& readings() const { return readings_; }
  // Returns the reading for a block whose projections take `hidden` features and whose query and key projections leave
  // `query_features` and `key_features`. The query projection may leave twice as many features as the queries have: a
  // gate for each feature. Returns nullopt if no reading fits, or if several fit that differ in their numbers of heads.
  std::optional<HeadCount> Of(int64_t hidden, int64_t query_features, int64_t key_features) const;
  // The same for one projection from `hidden` to `features` features that computes queries, keys and values together.
  std::optional<HeadCount> OfFused(int64_t hidden, int64_t features) const;

 private:
  void Read(const JsonValue& config, const std::string& prefix);
  std::vector<HeadCount> readings_;
};

}  // namespace moonshard
