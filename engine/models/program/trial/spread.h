// Spread: which elements of a value of an exported program each rank of tp has. The layout algebra (engine/layout)
// declares how a tensor is sharded; a spread is what is known of a value in the middle of a graph, where the elements
// of a shard may have any order. Internal to engine/models/program/trial.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/layout/layout.h"

namespace moonshard::trial {

// By rank: indices of a dim.
using Elements = std::vector<std::vector<int64_t>>;

struct Spread {
  enum class Kind : uint8_t {
    kUnknown,
    kReplicate,  // every rank has the tensor
    kShard,      // each rank has the elements of `shards`
    kPartial,    // the tensor is the sum of what the ranks have
  };
  // Rank r has of(r) of dim `dim`, in this order; several ranks may have the same elements. Copies share the elements.
  struct Shard {
    int64_t dim = 0;
    std::shared_ptr<const Elements> elements;
    size_t hash = 0;  // of the elements

    Shard() = default;
    Shard(int64_t of_dim, Elements of_ranks);
    const std::vector<int64_t>& of(size_t rank) const { return (*elements)[rank]; }
    bool operator==(const Shard& other) const {
      return dim == other.dim && hash == other.hash && (elements == other.elements || *elements == *other.elements);
    }
  };
  Kind kind = Kind::kUnknown;
  // Of kShard: one, or two in the order of their dims, of which a rank has the elements that are in both: the key heads
  // that ranks share, repeated for the query heads of each rank.
  std::vector<Shard> shards;
  bool zero = false;            // zeros, or memory without values; of kReplicate, it may stand for a partial tensor too
  at::Tensor constant;          // of kReplicate: the value, if no input or parameter of the program has a part in it
  std::vector<uint32_t> lacks;  // values of parameters that are added after a reduction, which the ranks' tensors lack
  // The dims along which all slices are equal (as of an expanded tensor), of size above 1, ascending.
  std::vector<int64_t> uniform;
  int32_t origin = -1;  // the module (of the plan's tree) whose plan line sharded the tensor; -1: none

  static Spread Replicate() { return {Kind::kReplicate}; }
  static Spread Partial() { return {Kind::kPartial}; }
  bool known() const { return kind != Kind::kUnknown; }
  bool is_shard() const { return kind == Kind::kShard; }
  // Whether several ranks have an element.
  bool has_replicas() const;
  // The shard along `dim`; nullptr: none.
  const Shard* Along(int64_t dim) const;
  bool is_partial() const { return kind == Kind::kPartial; }
  // Whether each rank has the tensor of the full model.
  bool is_full() const { return kind == Kind::kReplicate && lacks.empty(); }
  // Whether the ranks have the same elements of both.
  bool Same(const Spread& other) const;
  // "[2, 8 of 16]", "[2, 8 of 16 in another order]", "partial [2, 16]".
  std::string ToText(const std::vector<int64_t>& sizes) const;
};

// The spread of a tensor of these sizes under a layout along an axis of `ranks` ranks; nullopt if the layout does not
// fit.
std::optional<Spread> SpreadUnder(const Layout& layout, const std::vector<int64_t>& sizes, int64_t ranks);

// The slices of `full` that a rank has under a spread of kind kShard.
at::Tensor SlicesOf(const Spread& spread, const at::Tensor& full, size_t rank);

// What the ranks have of `full`, under a known spread that lacks nothing. The terms of a partial tensor are drawn at
// random from `generator`; their sum is `full` up to rounding. The tensors own their memory.
std::vector<at::Tensor> OnRanks(const Spread& spread, const at::Tensor& full, int64_t ranks, at::Generator generator);

}  // namespace moonshard::trial
