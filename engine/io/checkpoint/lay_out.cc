// Tensors share layouts: a model of 60 layers has a dozen pairs of shape and placement, so shards are computed once for
// each pair and tensors refer to them by index. Rank files exist for ranks that differ along an axis that shards
// something; the others would repeat them byte for byte.
//
// Nothing here depends on the rank that runs it. In the middle of training every rank computes the same LaidOut and
// writes its own file at the offsets that the manifest will declare, without communicating about them.
#include "engine/io/checkpoint/lay_out.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/safetensors/header_json.h"
#include "engine/io/safetensors/reader.h"
#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

// Indices into manifest.tensors in the order of a rank file's bytes. Wide dtypes are first, so that every tensor begins
// at a multiple of its element's size; the sort is stable, so that tensors of one dtype keep the order in which they
// were given, which is that in which a source is read.
std::vector<uint32_t> OrderInFile(const LaidOut& laid_out) {
  std::vector<uint32_t> order = laid_out.order;
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](uint32_t t) { return BitsOf(laid_out.manifest.tensors[t].dtype); });
  return order;
}

Result<WrittenHeader> MakeHeader(const LaidOut& laid_out, size_t file) {
  const Manifest& manifest = laid_out.manifest;
  std::vector<TensorSpec> specs;
  for (uint32_t t : OrderInFile(laid_out)) {
    const ShardedTensor& tensor = manifest.tensors[t];
    const std::optional<ShardDims>& shard = manifest.LayoutOf(tensor).shards[file];
    if (shard) specs.push_back({tensor.name, tensor.dtype, LocalShapeOf(*shard)});
  }
  const RankFile& rank_file = manifest.rank_files[file];
  return WriteHeader(rank_file.name, specs,
                     {{"format", "pt"},
                      {"moonshard_mesh", manifest.mesh.ToString()},
                      {"moonshard_rank", std::to_string(rank_file.rank)}});
}

class Layer {
 public:
  Layer(const std::vector<PlacedTensor>& tensors, const MeshShape& mesh, Replicas replicas)
      : tensors_(tensors), replicas_(replicas) {
    out_.manifest.mesh = mesh;
  }

  Result<LaidOut> Run() {
    MakeLayouts();
    MakeRankFiles();
    MakeShards();
    for (size_t i = 0; i < tensors_.size(); ++i) CheckBytes(tensors_[i], layout_of_[i]);
    if (!errors_.empty()) return errors_;
    SortTensors();
    if (!errors_.empty()) return errors_;
    for (size_t file = 0; file < out_.manifest.rank_files.size(); ++file) PlaceInFile(file);
    if (!errors_.empty()) return errors_;
    return std::move(out_);
  }

 private:
  // One for each shape and placement; an axis of one rank shards nothing.
  void MakeLayouts() {
    std::map<std::pair<std::vector<int64_t>, std::string>, uint32_t> known;
    for (const PlacedTensor& tensor : tensors_) {
      const auto [found, is_new] = known.emplace(std::pair(tensor.shape, tensor.placement.ToText()),
                                                 static_cast<uint32_t>(out_.manifest.layouts.size()));
      layout_of_.push_back(found->second);
      if (!is_new) continue;
      ShardLayout layout;
      layout.shape = tensor.shape;
      for (MeshAxis axis : kMeshAxes) {
        const Layout& of = tensor.placement[axis];
        if (of.is_shard() && out_.manifest.mesh.size(axis) > 1) layout.placement.emplace(ToString(axis), of.ToText());
      }
      out_.manifest.layouts.push_back(std::move(layout));
      placements_.push_back(tensor.placement);
    }
  }

  // One file for each combination of coordinates along sharding axes: that of the first rank that has it, coordinate 0
  // on the other axes. On dp_replicate=2, tp=2 with tensors that only tp shards, ranks 0 and 1 have files, and ranks 2
  // and 3 read those.
  void MakeRankFiles() {
    const MeshShape& mesh = out_.manifest.mesh;
    const std::vector<MeshAxis> sharding = ShardingAxes(out_.manifest.layouts);
    std::vector<int64_t> holders = {0};
    for (MeshAxis axis : kMeshAxes) {
      const bool shards = std::ranges::find(sharding, axis) != sharding.end();
      std::vector<int64_t> next;
      for (int64_t outer : holders) {
        for (int64_t c = 0; c < (shards ? mesh.size(axis) : 1); ++c) next.push_back(outer * mesh.size(axis) + c);
      }
      holders = std::move(next);
    }
    for (int64_t rank : holders) out_.manifest.rank_files.push_back({RankFileName(rank), rank});
  }

  void MakeShards() {
    for (size_t l = 0; l < placements_.size(); ++l) {
      ShardLayout& layout = out_.manifest.layouts[l];
      for (const RankFile& file : out_.manifest.rank_files) {
        std::optional<ShardDims> shard =
            TidyShard(LocalIntervals(layout.shape, placements_[l], out_.manifest.mesh, file.rank));
        // With Replicas::kFirst a shard that several files could have is in the first of them, so that training writes
        // nothing twice. Which file that is follows from the order of the files: the ranks need not agree on it.
        const bool is_there = std::ranges::find(layout.shards, shard) != layout.shards.end();
        if (replicas_ == Replicas::kFirst && is_there) shard.reset();
        layout.shards.push_back(std::move(shard));
      }
    }
  }

  void CheckBytes(const PlacedTensor& tensor, uint32_t layout) {
    for (const std::optional<ShardDims>& shard : out_.manifest.layouts[layout].shards) {
      if (!shard || ShardsAtBytes(tensor.shape, tensor.dtype, *shard)) continue;
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                    "a shard of " + QuotedName(tensor.name) + " begins or ends within a byte");
      d.path = tensor.name;
      d.declared =
          std::string(ToString(tensor.dtype)) + " " + ShapeToString(tensor.shape) + " as " + tensor.placement.ToText();
      d.required =
          "shards that begin and end at byte boundaries: a multiple of 2 elements of float4, of 4 elements of float6";
      errors_.push_back(std::move(d));
      return;
    }
  }

  void SortTensors() {
    std::vector<uint32_t> by_name(tensors_.size());
    std::iota(by_name.begin(), by_name.end(), 0U);
    std::ranges::sort(by_name, {}, [&](uint32_t i) -> const std::string& { return tensors_[i].name; });
    out_.order.resize(tensors_.size());
    for (uint32_t i : by_name) {
      const PlacedTensor& tensor = tensors_[i];
      std::vector<ShardedTensor>& sorted = out_.manifest.tensors;
      if (!sorted.empty() && sorted.back().name == tensor.name) {
        errors_.push_back(BadSafetensors("", tensor.name, "tensor " + QuotedName(tensor.name) + " is duplicated"));
      }
      out_.order[i] = static_cast<uint32_t>(sorted.size());
      sorted.push_back({tensor.name, tensor.dtype, layout_of_[i], std::nullopt,
                        std::vector<uint64_t>(out_.manifest.rank_files.size(), 0)});
    }
  }

  // Offsets follow from the header alone, which is written first, so a file can be written at any place at once.
  void PlaceInFile(size_t file) {
    std::optional<WrittenHeader> header = MakeHeader(out_, file).Collect(errors_);
    if (!header) return;
    std::vector<uint64_t> begin(out_.manifest.tensors.size());
    uint64_t at = header->text.size();
    for (uint32_t t : OrderInFile(out_)) {
      const ShardedTensor& tensor = out_.manifest.tensors[t];
      const std::optional<ShardDims>& shard = out_.manifest.LayoutOf(tensor).shards[file];
      begin[t] = at;
      if (shard) at += static_cast<uint64_t>(ShardBytes(tensor.dtype, *shard));
    }
    out_.begin.push_back(std::move(begin));
    out_.manifest.rank_files[file].bytes = header->text.size() + header->data_bytes;
    out_.manifest.rank_files[file].header_hash = HashOf(header->text);
  }

  const std::vector<PlacedTensor>& tensors_;
  Replicas replicas_;
  std::vector<uint32_t> layout_of_;    // by tensor as given
  std::vector<Placement> placements_;  // by layout
  LaidOut out_;
  Diagnostics errors_;
};

}  // namespace

Result<LaidOut> LayOut(const std::vector<PlacedTensor>& tensors, const MeshShape& mesh, Replicas replicas) {
  return Layer(tensors, mesh, replicas).Run();
}

std::string HeaderOf(const LaidOut& laid_out, size_t file) {
  Result<WrittenHeader> header = MakeHeader(laid_out, file);
  Check(header.ok(), "HeaderOf: LayOut reported no error for this header");
  return std::move(header).value().text;
}

}  // namespace moonshard
