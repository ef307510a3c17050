// HeadCounts: the numbers of attention heads that a model's config declares, for the lints that compare a plan's heads
// with them. A config may declare several (text and vision, local and global attention), and nothing in it names the
// modules that each is for: a reading applies where the features of the projections fit it and no other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard {

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
  HeadCounts() = default;  // none is known
  // From hidden_size, num_attention_heads, num_key_value_heads, head_dim (hidden_size / num_attention_heads where it is
  // missing), num_global_key_value_heads and global_head_dim of the config and of every object in it whose key ends
  // with "config". Fields that are missing, no numbers, or do not divide each other give no reading.
  explicit HeadCounts(const JsonValue& config);

  const std::vector<HeadCount>& readings() const { return readings_; }
  // The one reading for a block whose projections take `hidden` features and whose query and key projections leave this
  // many; queries may carry a gate for each feature, and have twice as many. Nothing where none fits, or several that
  // differ in their numbers of heads.
  std::optional<HeadCount> Of(int64_t hidden, int64_t query_features, int64_t key_features) const;
  // The one reading for a projection that makes queries, keys and values together.
  std::optional<HeadCount> OfFused(int64_t hidden, int64_t features) const;

 private:
  void Read(const JsonValue& config, const std::string& prefix);
  std::vector<HeadCount> readings_;
};

}  // namespace moonshard
