// The manifest as JSON, and back. W [64, 64] as shard(0) on tp=2:
//
//   "layouts": [{ "shape": [64, 64], "placement": { "tp": "shard(0)" },
//                 "pieces": [[[0, 32], [0, 64]], [[32, 32], [0, 64]]] }]
//   "tensors": { "W": { "dtype": "F32", "layout": 0, "pieces": "HASH HASH", "hash": "HASH" } }
//
// A shard is an array by dim of begin, length, begin, length, ...: a dim of several parts has several pairs. The key of
// shards is "pieces", a name of the file format that stays. What is read is untrusted: every index, interval and file
// name is checked here, so that the readers of a Manifest need no checks of their own.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/json_fields.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/cover.h"
#include "engine/io/checkpoint/manifest.h"
#include "engine/io/safetensors/recipe_json.h"
#include "engine/layout/layout_text.h"
#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

constexpr const char* kSelfHash = "manifest_hash";

// Whether the bits of a tensor, and so of every part of it, are a number of int64_t: whatever reads it multiplies them.
bool SizeFits(DType dtype, const std::vector<int64_t>& shape) {
  if (std::ranges::find(shape, 0) != shape.end()) return true;
  int64_t bits = BitsOf(dtype);
  // Room for what rounds up to bytes.
  return std::ranges::none_of(shape, [&](int64_t size) { return __builtin_mul_overflow(bits, size, &bits); }) &&
         bits <= INT64_MAX - 7;
}

JsonValue ShardToJson(const std::optional<ShardDims>& shard) {
  if (!shard) return nullptr;
  JsonValue::Array dims;
  for (const std::vector<Interval>& intervals : *shard) {
    JsonValue::Array dim;
    for (const Interval& interval : intervals) {
      dim.emplace_back(interval.begin);
      dim.emplace_back(interval.length);
    }
    dims.emplace_back(std::move(dim));
  }
  return dims;
}

JsonValue LayoutToJson(const ShardLayout& layout) {
  JsonValue::Array shards;
  for (const std::optional<ShardDims>& shard : layout.shards) shards.push_back(ShardToJson(shard));
  JsonValue::Object placement;
  for (const auto& [axis, text] : layout.placement) placement.emplace(axis, text);
  JsonValue::Array shape(layout.shape.begin(), layout.shape.end());
  return JsonValue::Object{
      {"pieces", std::move(shards)}, {"placement", std::move(placement)}, {"shape", std::move(shape)}};
}

// One hash for each file, "-" for a file that does not have the tensor: one text, for there may be millions.
JsonValue TensorToJson(const ShardedTensor& tensor, const ShardLayout& layout) {
  std::string shards;
  for (size_t i = 0; i < tensor.shard_hash.size(); ++i) {
    shards += (i > 0 ? " " : "") + (layout.shards[i] ? HashToText(tensor.shard_hash[i]) : "-");
  }
  JsonValue::Object out{
      {"dtype", SafetensorsName(tensor.dtype)}, {"layout", tensor.layout}, {"pieces", std::move(shards)}};
  if (tensor.hash) out.emplace("hash", HashToText(*tensor.hash));
  return out;
}

// Fields of the file's values. What is missing or of another kind is noted once and read as nothing.
class Fields {
 public:
  Fields(std::string file_name, Diagnostics& found) : file_name_(std::move(file_name)), found_(found) {}

  const std::string& file_name() const { return file_name_; }

  void Say(const std::string& what, const std::string& path = "", const std::string& required = "",
           const std::string& declared = "") {
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, what);
    d.where.file = file_name_;
    d.path = path;
    d.declared = declared;
    d.required = required;
    found_.push_back(std::move(d));
  }

  const std::string& Text(const JsonValue& in, const char* key, const std::string& path) {
    const JsonValue* value = Need(in, key, path, "string", &JsonValue::is_string);
    return value ? value->AsString() : kNoText;
  }
  int64_t Count(const JsonValue& in, const char* key, const std::string& path) {
    const JsonValue* value =
        Need(in, key, path, "integer of at least 0", [](const JsonValue& v) { return v.is_int() && v.AsInt() >= 0; });
    return value ? value->AsInt() : 0;
  }
  const JsonValue::Array& List(const JsonValue& in, const char* key, const std::string& path) {
    const JsonValue* value = Need(in, key, path, "array", &JsonValue::is_array);
    return value ? value->AsArray() : kNoArray;
  }
  const JsonValue::Object& Map(const JsonValue& in, const char* key, const std::string& path) {
    const JsonValue* value = Need(in, key, path, "object", &JsonValue::is_object);
    return value ? value->AsObject() : kNoObject;
  }
  uint64_t Hash(const std::string& text, const std::string& path) {
    const std::optional<uint64_t> hash = HashFromText(text);
    if (!hash) Say("a hash is not 16 hex digits", path);
    return hash.value_or(0);
  }
  uint64_t Hash(const JsonValue& in, const char* key, const std::string& path) {
    const JsonValue* value = Need(in, key, path, "string", &JsonValue::is_string);
    return value ? Hash(value->AsString(), path) : 0;
  }
  // A path within the directory, by its text alone.
  const std::string& Inside(const std::string& name) {
    const std::filesystem::path path(name);
    const bool strange = std::ranges::any_of(path, [](const auto& part) { return part == ".." || part == "."; });
    if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || !path.has_filename() || strange) {
      Say("the name " + Quoted(name) + " is not a path of a file within the directory of the checkpoint");
    }
    return name;
  }

 private:
  static std::string Quoted(const std::string& name) { return JsonQuoted(name); }
  const JsonValue* Need(const JsonValue& in, const char* key, const std::string& path, const char* kind,
                        const std::function<bool(const JsonValue&)>& is) {
    const JsonValue* value = in.Find(key);
    if (value && is(*value)) return value;
    Say(value ? std::string("the field '") + key + "' has the wrong type"
              : std::string("there is no field '") + key + "'",
        path, kind);
    return nullptr;
  }

  static inline const std::string kNoText;
  static inline const JsonValue::Array kNoArray;
  static inline const JsonValue::Object kNoObject;
  std::string file_name_;
  Diagnostics& found_;
};

// The order is that of dependence: the version (in another one the fields may mean something else), the hash (the rest
// is as it was written), files, layouts (a shard for each file), tensors (a layout that exists). Reading goes on after
// an error, but not after one of the first two, from which the later ones would follow.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& file_name) : fields_(file_name, found_) {}

  Result<Manifest> Read(JsonValue json) {
    if (!VersionIsGood(json) || !IsAsWritten(json)) return found_;
    ReadMesh(json);
    out_.plan = fields_.Text(json, "plan", "");
    out_.plan_hash = fields_.Text(json, "plan_hash", "");
    for (const JsonValue& file : fields_.List(json, "rank_files", "")) {
      const std::string& name = fields_.Inside(fields_.Text(file, "name", "rank_files"));
      out_.rank_files.push_back({name, fields_.Count(file, "rank", name),
                                 static_cast<uint64_t>(fields_.Count(file, "bytes", name)),
                                 fields_.Hash(file, "header_hash", name)});
    }
    for (const JsonValue& layout : fields_.List(json, "layouts", "")) ReadLayout(layout);
    if (found_.empty()) CheckPlaces();
    for (const auto& [name, tensor] : fields_.Map(json, "tensors", "")) ReadTensor(name, tensor);
    for (const JsonValue& tie : fields_.List(json, "ties", "")) ReadTie(tie);
    ReadFiles(json);
    if (json.Find("made") != nullptr) ReadMade(fields_.Map(json, "made", ""));
    out_.extra = fields_.Map(json, "extra", "");
    if (!found_.empty()) return found_;
    return std::move(out_);
  }

 private:
  bool VersionIsGood(const JsonValue& json) {
    const std::string version = fields_.Text(json, "format_version", "");
    const std::string major = Split(kManifestVersion, '.').front();
    if (!found_.empty()) return false;
    if (Split(version, '.').front() == major) return true;
    fields_.Say(
        "the format version " + (version.empty() ? "\"\"" : version) + " of the sharded checkpoint is not supported",
        "", "version " + major);
    return false;
  }

  // The hash is of the compact text of all other fields, so the layout of the file on disk does not matter, and an edit
  // of any field does. It guards against damage and edits by hand, not against an attacker, who can compute it.
  bool IsAsWritten(JsonValue& json) {
    const uint64_t hash = fields_.Hash(json, kSelfHash, "");
    json.AsObject().erase(kSelfHash);
    if (found_.empty() && hash != HashOf(WriteJson(json, 0)))
      fields_.Say("the manifest was changed after it was written");
    return found_.empty();
  }

  void ReadMesh(const JsonValue& json) {
    std::vector<std::pair<std::string, int64_t>> axes;
    for (const auto& [axis, size] : fields_.Map(json, "mesh", "")) {
      if (size.is_int()) {
        axes.emplace_back(axis, size.AsInt());
      } else {
        fields_.Say("the size of mesh axis " + JsonQuoted(axis) + " has the wrong type", "mesh",
                    "integer of at least 1", WriteJson(size, 0));
      }
    }
    if (!found_.empty()) return;
    if (std::optional<MeshShape> mesh = MeshShape::Make(axes).Collect(found_)) out_.mesh = *mesh;
    for (Diagnostic& d : found_) d.where.file = fields_.file_name();
  }

  void ReadTie(const JsonValue& tie) {
    const auto is_text = [](const JsonValue& name) { return name.is_string(); };
    if (!tie.is_array() || !std::ranges::all_of(tie.AsArray(), is_text)) {
      fields_.Say("a tie is not a list of names", "ties", "array of strings");
      return;
    }
    out_.ties.emplace_back();
    for (const JsonValue& name : tie.AsArray()) out_.ties.back().push_back(name.AsString());
  }

  // Mesh, placements and rank files are of one save: an axis that shards is one of the mesh, and every combination of
  // coordinates along such axes has a file, in the order of ranks. No list is made of the ranks.
  void CheckPlaces() {
    std::vector<PlacedLayout> layouts;
    for (size_t l = 0; l < out_.layouts.size(); ++l) {
      for (const auto& [axis, text] : out_.layouts[l].placement) {
        const std::optional<MeshAxis> known = MeshAxisFromName(axis);
        if (!known || ToString(*known) != axis || out_.mesh.size(*known) == 1) {
          fields_.Say("a tensor is sharded along " + JsonQuoted(axis) + ", which is not an axis of the mesh",
                      LayoutName(l), out_.mesh.ToString());
        }
        if (const std::optional<Layout> layout = ShardOf(text, out_.layouts[l].shape.size())) {
          layouts.push_back({l, *known, *layout});
          continue;
        }
        fields_.Say("the placement " + JsonQuoted(text) + " does not shard a dim of a tensor of shape " +
                        ShapeToString(out_.layouts[l].shape),
                    LayoutName(l), "a layout, for example shard(0)");
      }
    }
    if (!found_.empty()) return;
    const std::vector<MeshAxis> sharding = ShardingAxes(out_.layouts);
    int64_t files = 1;
    for (const MeshAxis axis : sharding) files *= out_.mesh.size(axis);
    int64_t before = -1;
    bool good = files == static_cast<int64_t>(out_.rank_files.size());
    for (const RankFile& file : out_.rank_files) {
      good = good && file.rank > before && file.rank < out_.mesh.world_size() &&
             HolderOf(out_.mesh, sharding, file.rank) == file.rank;
      before = file.rank;
    }
    if (!good) {
      fields_.Say(
          "the rank files do not match the mesh " + out_.mesh.ToString(), "rank_files",
          Count(static_cast<size_t>(files), "file") + ", each with the lowest rank that has the shards of the file");
    }
    if (!good) return;
    for (const PlacedLayout& placed : layouts) CheckMadeOf(placed);
    for (size_t l = 0; l < out_.layouts.size(); ++l) CheckOrder(l, sharding);
    if (!found_.empty()) return;
    for (size_t l = 0; l < out_.layouts.size(); ++l) CheckNested(l);
  }

  struct PlacedLayout {
    size_t index;
    MeshAxis axis;
    Layout layout;
  };

  // What a layout says its dim is made of is true of the dim. On dp_shard the dim is the shard of tp.
  void CheckMadeOf(const PlacedLayout& placed) {
    const Layout& layout = placed.layout;
    if (placed.axis != MeshAxis::kTp) return;
    const int64_t size = out_.layouts[placed.index].shape[static_cast<size_t>(layout.dim)];
    const Result<DimShards> shards = DimShards::Make(layout.Sized(size), size, out_.mesh.size(placed.axis));
    for (const Diagnostic& d : shards.diagnostics())
      fields_.Say(d.message, LayoutName(placed.index), d.required, d.declared);
  }

  // From one rank to the next along an axis only the dim changes that the axis shards, and there the shards go up. So
  // shards that were exchanged are found, which cover their tensor as well.
  void CheckOrder(size_t index, const std::vector<MeshAxis>& sharding) {
    const ShardLayout& layout = out_.layouts[index];
    std::map<int64_t, size_t> file_of;  // by rank
    for (size_t f = 0; f < out_.rank_files.size(); ++f) file_of[out_.rank_files[f].rank] = f;
    for (const auto& [rank, file] : file_of) {
      int64_t stride = 1;  // from a rank to the next one along the axis
      for (const MeshAxis axis : kMeshAxes | std::views::reverse) {
        const auto next = file_of.find(rank + stride);
        const bool last = out_.mesh.Coordinate(rank, axis) + 1 == out_.mesh.size(axis);
        stride *= out_.mesh.size(axis);
        if (last || next == file_of.end() || std::ranges::find(sharding, axis) == sharding.end()) continue;
        const std::optional<ShardDims>& here = layout.shards[file];
        const std::optional<ShardDims>& there = layout.shards[next->second];
        const auto placement = layout.placement.find(ToString(axis));
        const size_t dims = layout.shape.size();
        const std::optional<Layout> shard =
            placement == layout.placement.end() ? std::nullopt : ShardOf(placement->second, dims);
        const size_t dim = shard ? static_cast<size_t>(shard->dim) : dims;
        if (!here || !there || GoesUp(*here, *there, dim)) continue;
        fields_.Say("the shards are not in the order of the ranks", LayoutName(index));
        return;
      }
    }
  }

  // Where several axes shard one dim, neighbours along each axis may be in order although two shards were exchanged: on
  // dp_shard=2 and cp=2 the second and the third. There the shards have to be those of the placement.
  void CheckNested(size_t index) {
    const ShardLayout& layout = out_.layouts[index];
    Placement placement;
    std::set<int> dims;
    for (const auto& [axis, text] : layout.placement) {
      const std::optional<Layout> shard = ShardOf(text, layout.shape.size());
      const std::optional<MeshAxis> on = MeshAxisFromName(axis);
      // On tp it was checked that the shard fits its dim; any plain shard fits.
      if (!shard || !on || (*on != MeshAxis::kTp && !shard->is_plain_shard())) return;
      dims.insert(shard->dim);
      placement[*on] = shard->Sized(layout.shape[static_cast<size_t>(shard->dim)]);
    }
    if (dims.size() == layout.placement.size()) return;
    for (size_t f = 0; f < out_.rank_files.size(); ++f) {
      const int64_t rank = out_.rank_files[f].rank;
      const std::optional<ShardDims>& shard = layout.shards[f];
      if (!shard || *shard == TidyShard(LocalIntervals(layout.shape, placement, out_.mesh, rank))) continue;
      fields_.Say("the shard of rank " + std::to_string(rank) + " is not the shard of its placement", LayoutName(index),
                  placement.ToText() + " on " + out_.mesh.ToString());
      return;
    }
  }

  // Whether the dim of a shard does not begin after that of the next one, and all others are equal.
  static bool GoesUp(const ShardDims& shard, const ShardDims& next, size_t dim) {
    for (size_t d = 0; d < shard.size(); ++d) {
      if (d != dim && shard[d] != next[d]) return false;
      const bool both = !shard[d].empty() && !next[d].empty();  // what is empty has no place
      if (both && shard[d].front().begin > next[d].front().begin) return false;
    }
    return true;
  }

  static std::string LayoutName(size_t index) { return "layout " + std::to_string(index); }

  // The shard of one of so many dims.
  static std::optional<Layout> ShardOf(const std::string& text, size_t dims) {
    std::optional<Layout> layout = ShardFromText(text);
    if (layout && (layout->dim < 0 || static_cast<size_t>(layout->dim) >= dims)) return std::nullopt;
    return layout;
  }

  // Tensors refer to layouts by index: tensors of one shape and placement share a layout, so a checkpoint of many equal
  // layers has few. A layout is checked once, also that its shards cover the full tensor; every tensor with it is then
  // readable on any mesh.
  void ReadLayout(const JsonValue& json) {
    const std::string path = LayoutName(out_.layouts.size());
    ShardLayout layout;
    bool shape_is_good = true;
    for (const JsonValue& size : fields_.List(json, "shape", path)) {
      const bool good = size.is_int() && size.AsInt() >= 0;
      if (!good) {
        fields_.Say("a shape has a size that is not an integer of at least 0", path, "", WriteJson(size, 0));
        shape_is_good = false;
      }
      layout.shape.push_back(good ? size.AsInt() : 0);
    }
    for (const auto& [axis, text] : fields_.Map(json, "placement", path)) {
      if (!text.is_string()) fields_.Say("a placement is not a string", path, "a layout, for example shard(0)");
      layout.placement.emplace(axis, text.is_string() ? text.AsString() : "");
    }
    for (const JsonValue& shard : fields_.List(json, "pieces", path)) {
      if (!shape_is_good) break;  // nothing could be within it
      layout.shards.push_back(ReadShard(shard, layout, path));
    }
    if (shape_is_good && layout.shards.size() != out_.rank_files.size())
      fields_.Say("the number of shards differs from the number of rank files", path);
    if (found_.empty()) CheckCover(layout, path);
    out_.layouts.push_back(std::move(layout));
  }

  // Intervals of a dim are in order, do not overlap and are within the dim. The last condition is a subtraction: a sum
  // of two large numbers of the file could overflow.
  std::optional<ShardDims> ReadShard(const JsonValue& json, const ShardLayout& layout, const std::string& path) {
    if (json.is_null()) return std::nullopt;
    ShardDims shard;
    bool good = json.is_array() && json.AsArray().size() == layout.shape.size();
    for (size_t d = 0; good && d < layout.shape.size(); ++d) {
      const JsonValue& dim = json.AsArray()[d];
      good = dim.is_array() && dim.AsArray().size() % 2 == 0 &&
             std::ranges::all_of(dim.AsArray(), [](const JsonValue& n) { return n.is_int() && n.AsInt() >= 0; });
      shard.emplace_back();
      int64_t end = 0;
      for (size_t i = 0; good && i < dim.AsArray().size(); i += 2) {
        const Interval interval{dim.AsArray()[i].AsInt(), dim.AsArray()[i + 1].AsInt()};
        good = interval.begin >= end && interval.length > 0 && interval.begin <= layout.shape[d] &&
               interval.length <= layout.shape[d] - interval.begin;
        if (good) end = interval.begin + interval.length;
        shard.back().push_back(interval);
      }
    }
    if (good) return shard;
    fields_.Say(
        "the intervals of a shard are not in order, or are outside the tensor", path,
        "a list of begin, length, begin, length, ... for each dim of a tensor of shape " + ShapeToString(layout.shape));
    return std::nullopt;
  }

  void CheckCover(const ShardLayout& layout, const std::string& path) {
    ShardDims full;
    for (int64_t size : layout.shape) full.push_back({{0, size}});
    full = TidyShard(full);
    if (IsDividedTooFinely(full, layout.shards)) {
      fields_.Say("the shards divide their tensors into too many parts (more than 2^22)", path);
    } else if (!CoverShard(full, layout.shards)) {
      fields_.Say("the shards do not cover their full tensors", path);
    }
  }

  void ReadTensor(const std::string& name, const JsonValue& json) {
    ShardedTensor tensor;
    tensor.name = name;
    const std::string& word = fields_.Text(json, "dtype", name);
    const std::optional<DType> dtype = DTypeFromSafetensors(word);
    if (!dtype) fields_.Say("unknown dtype '" + word + "'", name);
    tensor.dtype = dtype.value_or(DType::kF32);
    const int64_t layout = fields_.Count(json, "layout", name);
    if (json.Find("hash")) tensor.hash = fields_.Hash(json, "hash", name);
    const std::vector<std::string> shards = Split(fields_.Text(json, "pieces", name), ' ');
    if (layout >= static_cast<int64_t>(out_.layouts.size())) {
      fields_.Say("there is no layout " + std::to_string(layout), name);
      return;
    }
    tensor.layout = static_cast<uint32_t>(layout);
    const ShardLayout& of = out_.layouts[tensor.layout];
    if (!SizeFits(tensor.dtype, of.shape)) {
      fields_.Say("a tensor's size overflows: " + word + " " + ShapeToString(of.shape), name, "less than 2^63 bits");
      return;
    }
    if (shards.size() != of.shards.size()) {
      fields_.Say("the number of shards differs from the number of rank files", name);
      return;
    }
    for (size_t i = 0; i < shards.size(); ++i)
      tensor.shard_hash.push_back(of.shards[i] ? fields_.Hash(shards[i], name) : 0);
    out_.tensors.push_back(std::move(tensor));
  }

  void ReadFiles(const JsonValue& json) {
    for (const auto& [name, file] : fields_.Map(json, "kept", "")) {
      const std::string& stored = fields_.Inside(fields_.Text(file, "stored", name));
      if (stored != name && stored != std::string(kSourceFormDirectory) + "/" + name) {
        fields_.Say("the file is stored as " + JsonQuoted(stored), name,
                    "the name of the file, or moonshard/ followed by this name");
      }
      out_.kept.push_back({fields_.Inside(name), stored, static_cast<uint64_t>(fields_.Count(file, "bytes", name)),
                           fields_.Hash(file, "hash", name)});
    }
    for (const auto& [name, file] : fields_.Map(json, "source", "")) {
      out_.source.push_back({fields_.Inside(name), fields_.Inside(fields_.Text(file, "header", name)),
                             static_cast<uint64_t>(fields_.Count(file, "bytes", name)),
                             fields_.Hash(file, "header_hash", name)});
    }
    const JsonValue::Array& folders = fields_.List(json, "folders", "");
    if (folders.size() > kMostFolders) {
      fields_.Say("the manifest lists too many directories", "folders", "at most " + std::to_string(kMostFolders),
                  std::to_string(folders.size()));
      return;
    }
    for (const JsonValue& folder : folders) {
      out_.folders.push_back(fields_.Inside(folder.is_string() ? folder.AsString() : ""));
    }
  }

  void ReadMade(const JsonValue::Object& made) {
    RecipeJsonReader recipes;
    for (const auto& [name, json] : made) {
      MadeTensor& tensor = out_.made[name];
      if (json.Find("hash") != nullptr) tensor.hash = fields_.Hash(json, "hash", name);
      const JsonValue* recipe = json.Find("recipe");
      try {
        tensor.recipe = recipes.Read(recipe != nullptr ? *recipe : JsonValue());
      } catch (const json_fields::Fault& fault) {
        fields_.Say(fault.message, name);
        return;
      }
    }
  }

  Diagnostics found_;
  Fields fields_;
  Manifest out_;
};

}  // namespace

std::string Manifest::ToText() const {
  JsonValue::Object mesh_json;
  // The files depend on the number of ranks of each axis, and not on its factors.
  for (const MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1) mesh_json.emplace(std::string(ToString(axis)), mesh.size(axis));
  }
  JsonValue::Array ranks;
  for (const RankFile& file : rank_files) {
    ranks.push_back(JsonValue::Object{{"name", file.name},
                                      {"rank", file.rank},
                                      {"bytes", static_cast<int64_t>(file.bytes)},
                                      {"header_hash", HashToText(file.header_hash)}});
  }
  JsonValue::Array layout_list;
  for (const ShardLayout& layout : layouts) layout_list.push_back(LayoutToJson(layout));
  JsonValue::Object tensor_map;
  for (const ShardedTensor& tensor : tensors) tensor_map.emplace(tensor.name, TensorToJson(tensor, LayoutOf(tensor)));
  JsonValue::Array tie_list;
  for (const std::vector<std::string>& tie : ties) tie_list.emplace_back(JsonValue::Array(tie.begin(), tie.end()));
  JsonValue::Object kept_map;
  for (const KeptFile& file : kept) {
    kept_map.emplace(file.name, JsonValue::Object{{"stored", file.stored},
                                                  {"bytes", static_cast<int64_t>(file.bytes)},
                                                  {"hash", HashToText(file.hash)}});
  }
  JsonValue::Object source_map;
  for (const ModelFile& file : source) {
    source_map.emplace(file.name, JsonValue::Object{{"header", file.header},
                                                    {"bytes", static_cast<int64_t>(file.bytes)},
                                                    {"header_hash", HashToText(file.header_hash)}});
  }
  JsonValue json = JsonValue::Object{{"format_version", kManifestVersion},
                                     {"mesh", std::move(mesh_json)},
                                     {"plan", plan},
                                     {"plan_hash", plan_hash},
                                     {"rank_files", std::move(ranks)},
                                     {"layouts", std::move(layout_list)},
                                     {"tensors", std::move(tensor_map)},
                                     {"ties", std::move(tie_list)},
                                     {"kept", std::move(kept_map)},
                                     {"source", std::move(source_map)},
                                     {"folders", JsonValue::Array(folders.begin(), folders.end())},
                                     {"extra", extra}};
  if (!made.empty()) {
    JsonValue::Object made_map;
    for (const auto& [name, tensor] : made) {
      JsonValue::Object entry{{"recipe", moonshard::ToJson(tensor.recipe)}};
      if (tensor.hash) entry.emplace("hash", HashToText(*tensor.hash));
      made_map.emplace(name, std::move(entry));
    }
    json.AsObject().emplace("made", std::move(made_map));
  }
  const std::string hash = HashToText(HashOf(WriteJson(json, 0)));
  json.AsObject().emplace(kSelfHash, hash);
  return WriteJson(json, 1) + "\n";
}

Result<Manifest> Manifest::Parse(std::string_view text, const std::string& file_name) {
  Result<JsonValue> json = ParseJson(text, file_name);
  if (!json.ok()) return json.diagnostics();
  if (!json.value().is_object()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "the manifest is not a JSON object");
    d.where.file = file_name;
    return d;
  }
  return ManifestReader(file_name).Read(std::move(json).value());
}

}  // namespace moonshard
