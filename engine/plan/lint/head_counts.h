// HeadCounts: the numbers of attention heads that a model's config declares. Lints compare the heads in a plan with
// these numbers. A config may declare several sets of numbers (text and vision, local and global attention) without the
// modules of each set. One such set is a reading of the config. A reading applies to a block only if the feature sizes
// of the block's projections fit this reading and no other reading.
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
  int64_t hidden = 0;     // features of the residual stream: the input size of the projections
  std::string query_key;  // the field that gives heads: "num_attention_heads", "text_config.n_head"
  std::string key;        // the field that gives key_heads: "num_key_value_heads", "text_config.num_attention_heads"
  bool operator==(const HeadCount&) const = default;
};

class HeadCounts {
 public:
  HeadCounts() = default;  // no readings
  // Reads hidden_size, num_attention_heads, num_key_value_heads (if missing: num_attention_heads), head_dim (if
  // missing: hidden_size / num_attention_heads), num_global_key_value_heads and global_head_dim of the config and of
  // every object in it whose key ends with "config"; and the other names that configs in use have for these fields
  // ("n_head", "d_model", "num_kv_heads", ...: head_counts.cc). Several names with different numbers (encoder and
  // decoder) are several readings. An object gives no reading if a required field is missing or is not a positive
  // integer, or if key_heads does not divide heads.
  explicit HeadCounts(const JsonValue& config);

  const std::vector<HeadCount>& readings() const { return readings_; }
  // Returns the reading for a block whose projections have the input size `hidden` and whose query and key projections
  // have the output sizes `query_features` and `key_features`. The output of the query projection may be twice as large
  // as the queries, if the projection also computes a gate for each query feature. Returns nullopt if no reading fits,
  // or if several fit that differ in their numbers of heads.
  std::optional<HeadCount> Of(int64_t hidden, int64_t query_features, int64_t key_features) const;
  // Returns the reading for one projection from `hidden` to `features` features that computes queries, keys and values
  // together; nullopt as above.
  std::optional<HeadCount> OfFused(int64_t hidden, int64_t features) const;

 private:
  void Read(const JsonValue& config, const std::string& prefix);
  std::vector<HeadCount> readings_;
};

}  // namespace moonshard
