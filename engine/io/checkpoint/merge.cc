#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/conversion.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/convert_files.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/safetensors/header_json.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/storage/storage.h"

namespace moonshard {
namespace {

// A checkpoint can be damaged everywhere: after so many errors the rest is not informative.
constexpr size_t kMostErrors = 20;

// The source's files are rebuilt one after the other, tensors in the order of their bytes, a chunk at a time: each rank
// file's share of a chunk is read into its place, then the chunk is written. So the output is written from front to
// back, and every rank file's shard is read from front to back: a position for each file (`at`) is all that is known of
// the progress. Replicas are read from every file that has them, although one would do: a damaged file is found even
// where its bytes are not needed.
//
// Two hashes tell two kinds of damage apart: a shard that is not what was written (its own hash), and shards that are
// all as written but do not belong together, as those of two saves (the hash of the full tensor).
//
// Tensors that are stored as parts of others (Manifest::made) are made of shards that were checked before, in a pass of
// their own:
// they are needed a part at a time, in an order of their own.
class Merger : private Conversion {
 public:
  Merger(ShardedCheckpoint& sharded, const std::string& out, const ConvertOptions& options)
      : Conversion(out, options), sharded_(sharded), manifest_(sharded.manifest()) {}

  Result<ConvertSummary> Run() {
    if (manifest_.source.empty()) return NotFromModel();
    // Tied tensors may be stored once, under the first of their names, while the files of the model directory have any
    // of the names, or several: each is written from the one that is stored.
    for (const std::vector<std::string>& tie : manifest_.ties) {
      for (const std::string& name : tie) stored_as_.emplace(name, tie.front());
    }
    if (Failure nested = RefuseNested(sharded_.folder(), out())) return *nested;
    for (size_t file = 0; file < manifest_.rank_files.size(); ++file) {
      const auto offsets = sharded_.Offsets(file).Collect(found_);
      offsets_.push_back(offsets ? *offsets : nullptr);
    }
    for (const ModelFile& file : manifest_.source) ReadHeaderOf(file);
    if (HasErrors(found_)) return found_;
    CountBytes();
    return WriteThroughStaging("merge " + sharded_.folder() + "\n" + manifest_.ToText());
  }

 private:
  Diagnostic NotFromModel() const {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported,
                       "'" + sharded_.folder() +
                           "' was not made from a model directory, so it cannot be merged into a model directory");
    d.path = sharded_.folder();
    return d;
  }

  // A file of the model directory: its header, and its tensors in the order of their bytes.
  struct Rebuilt {
    const ModelFile* file = nullptr;
    std::string text;  // of the header
    Header header;
  };

  void ReadHeaderOf(const ModelFile& source) {
    const std::string path = sharded_.folder() + "/" + source.header;
    std::optional<std::string> text = ReadSmallFile(path, SmallFile::kStoredHeader).Collect(found_);
    if (!text) return;
    Rebuilt rebuilt{&source, *std::move(text), {}};
    if (HashOf(rebuilt.text) != source.header_hash) {
      found_.push_back(Corrupt(path, "", HashOf(rebuilt.text), source.header_hash));
      return;
    }
    std::optional<Header> header = ParseHeader(rebuilt.text, source.bytes, path).Collect(found_);
    if (!header) return;
    rebuilt.header = std::move(*header);
    for (const HeaderTensor& tensor : rebuilt.header.tensors) CheckKnown(tensor, path);
    rebuilt_.push_back(std::move(rebuilt));
  }

  // The tensor, or the one that is stored for it.
  const ShardedTensor* Stored(const std::string& name) const {
    if (const ShardedTensor* found = manifest_.Find(name)) return found;
    const auto tie = stored_as_.find(name);
    return tie == stored_as_.end() ? nullptr : manifest_.Find(tie->second);
  }

  // Of a tensor of the model directory.
  const MadeTensor* Made(const std::string& name) const {
    const auto found = manifest_.made.find(name);
    return found == manifest_.made.end() ? nullptr : &found->second;
  }

  // The tensors that recipes take apart.
  class StoredTensors : public RecipeSource {
   public:
    explicit StoredTensors(Merger& merger) : merger_(merger) {}
    std::optional<RecipeTensor> Find(const std::string& name) const override {
      const ShardedTensor* stored = merger_.Stored(name);
      if (stored == nullptr) return std::nullopt;
      return RecipeTensor{stored->dtype, merger_.manifest_.LayoutOf(*stored).shape};
    }
    Failure Read(const std::string& name, const ShardDims& dims, void* to) override {
      return merger_.sharded_.ReadShard(*merger_.Stored(name), TidyShard(dims), to);
    }

   private:
    Merger& merger_;
  };

  // What the tensor of a model directory's header is here; nothing where nothing is.
  std::optional<RecipeTensor> FormOf(const std::string& name) {
    StoredTensors stored(*this);
    const MadeTensor* made = Made(name);
    if (made == nullptr) return stored.Find(name);
    std::string why;
    return HasSources(made->recipe, stored) ? MadeBy(made->recipe, stored, why) : std::nullopt;
  }

  std::optional<uint64_t> HashOfTensor(const std::string& name) const {
    const MadeTensor* made = Made(name);
    return made != nullptr ? made->hash : Stored(name)->hash;
  }

  void CheckKnown(const HeaderTensor& tensor, const std::string& path) {
    if (FormOf(tensor.name) == RecipeTensor{tensor.dtype, tensor.shape}) return;
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest,
                                  "tensor " + QuotedName(tensor.name) + " of '" + path + "' differs from the manifest");
    d.path = tensor.name;
    d.declared = std::string(ToString(tensor.dtype)) + " " + ShapeToString(tensor.shape);
    found_.push_back(std::move(d));
  }

  void CountBytes() {
    for (const RankFile& file : manifest_.rank_files) summary_.source_bytes += file.bytes;
    for (const KeptFile& file : manifest_.kept) summary_.source_bytes += file.bytes;
    for (const KeptFile& file : manifest_.kept) summary_.written_bytes += file.bytes;
    for (const ModelFile& file : manifest_.source) summary_.written_bytes += file.bytes;
    CountTensors(manifest_);
  }

  Failure Write() override {
    if (Failure failed = MakeDirectories(manifest_.folders)) return failed;
    std::vector<std::string> names;
    for (const KeptFile& file : manifest_.kept) {
      names.push_back(file.name);
      if (Failure failed = WriteKept(file)) return failed;
    }
    std::vector<std::string> rank_paths;
    for (const RankFile& file : manifest_.rank_files) rank_paths.push_back(sharded_.folder() + "/" + file.name);
    inputs_.emplace(std::move(rank_paths));
    if (Failure failed = CheckParts()) return failed;
    for (const Rebuilt& rebuilt : rebuilt_) {
      names.push_back(rebuilt.file->name);
      if (Failure failed = WriteRebuilt(rebuilt)) return failed;
    }
    // Damage is in found_ and is not a failure of writing: the caller reports it, and without the commit OUT does not
    // appear.
    if (HasErrors(found_)) return std::nullopt;
    return staging().Commit(names);
  }

  Failure WriteKept(const KeptFile& file) {
    const std::string from = sharded_.folder() + "/" + file.stored;
    const Result<uint64_t> hash = CopyTo(file.name, from, file.bytes);
    if (!hash.ok()) return hash.diagnostics().front();
    if (hash.value() != file.hash) found_.push_back(Corrupt(from, "", hash.value(), file.hash));
    Report(file.bytes);
    return std::nullopt;
  }

  Failure WriteRebuilt(const Rebuilt& rebuilt) {
    if (Failure failed = MakeDirectoriesFor(storage(), staging().directory(), rebuilt.file->name)) return failed;
    OutputFiles output(storage(), {staging().PathOf(rebuilt.file->name)});
    if (Failure failed = output.Truncate(0, rebuilt.file->bytes)) return failed;
    if (Failure failed = output.Write(0, 0, rebuilt.text.data(), rebuilt.text.size())) return failed;
    for (const HeaderTensor& tensor : rebuilt.header.tensors) {
      if (found_.size() >= kMostErrors) return std::nullopt;
      if (Failure failed = WriteTensor(tensor, rebuilt, output)) return failed;
    }
    return std::nullopt;
  }

  // Whether OUT is the directory that this would write, byte for byte. The number of files at the end finds a file too
  // many: every expected one was seen, so equal numbers are equal sets.
  bool IsThere() override {
    const auto is = [&](const std::string& name, uint64_t begin, uint64_t bytes, uint64_t all,
                        std::optional<uint64_t> hash) {
      std::error_code ignored;
      const std::string path = out() + "/" + name;
      return std::filesystem::file_size(path, ignored) == all && HasHash(path, begin, bytes, hash);
    };
    for (const KeptFile& file : manifest_.kept) {
      if (!is(file.name, 0, file.bytes, file.bytes, file.hash)) return false;
    }
    for (const Rebuilt& rebuilt : rebuilt_) {
      const ModelFile& file = *rebuilt.file;
      if (!is(file.name, 0, rebuilt.text.size(), file.bytes, file.header_hash)) return false;
      for (const HeaderTensor& tensor : rebuilt.header.tensors) {
        const uint64_t begin = rebuilt.header.data_begin + tensor.begin;
        if (!is(file.name, begin, tensor.end - tensor.begin, file.bytes, HashOfTensor(tensor.name))) return false;
      }
    }
    std::error_code ignored;
    size_t files = 0;
    for (std::filesystem::recursive_directory_iterator at(out(), ignored), end; at != end; at.increment(ignored)) {
      files += !at->is_directory(ignored);
    }
    return files == manifest_.kept.size() + rebuilt_.size();
  }

  // Whether an earlier process has written the tensor, and checked its shards.
  bool TakeNoted(const std::string& name, const std::string& path, uint64_t begin, uint64_t bytes) {
    const std::vector<uint64_t>* noted = staging().Recorded(name);
    return noted && noted->size() == 1 && HasHash(path, begin, bytes, noted->front());
  }

  // A tensor is recorded in the journal only if all of its shards and the full tensor have the expected hashes. Damage
  // does not stop the merge at once: further tensors are checked, so that one run reports all damaged files up to a
  // limit, but nothing is committed.
  Failure WriteTensor(const HeaderTensor& stored, const Rebuilt& rebuilt, OutputFiles& output) {
    const uint64_t begin = rebuilt.header.data_begin + stored.begin;
    const MadeTensor* made = Made(stored.name);
    const ShardedTensor* tensor = made != nullptr ? nullptr : Stored(stored.name);
    if (TakeNoted(stored.name, output.path(0), begin, stored.end - stored.begin)) {
      const uint64_t shards_bytes = tensor != nullptr ? ShardsBytes(*tensor) : 0;
      summary_.resumed_bytes += shards_bytes;
      Report(shards_bytes);
      return std::nullopt;
    }
    const auto write = [&](const Chunk& chunk) {
      return output.Write(0, begin + chunk.begin, buffer_.data(), chunk.bytes);
    };
    uint64_t hash = 0;
    if (tensor == nullptr) {
      if (Failure failed = Make(stored, made->recipe, write, hash)) return failed;
    } else {
      const size_t errors_before = found_.size();
      if (Failure failed = Assemble(*tensor, write, hash)) return failed;
      if (found_.size() > errors_before) return std::nullopt;
    }
    // Every shard is what was written, and still the full tensor is not: two ranks held different replicas.
    const std::optional<uint64_t> expected = HashOfTensor(stored.name);
    if (expected && hash != *expected) {
      found_.push_back(Corrupt(output.path(0), stored.name, hash, *expected));
      return std::nullopt;
    }
    return staging().Record(stored.name, {hash});
  }

  uint64_t ShardsBytes(const ShardedTensor& tensor) const {
    uint64_t bytes = 0;
    for (const auto& shard : manifest_.LayoutOf(tensor).shards) bytes += shard ? ShareBytes(tensor.dtype, *shard) : 0;
    return bytes;
  }

  // Hands the chunks of the full tensor to `take`, in buffer_. A shard that is not what was written goes to found_.
  template <class Take>
  Failure Assemble(const ShardedTensor& tensor, const Take& take, uint64_t& hash) {
    const ShardLayout& layout = manifest_.LayoutOf(tensor);
    Hasher full;
    std::vector<Hasher> hashers(layout.shards.size());
    std::vector<uint64_t> at(layout.shards.size(), 0);
    ChunkWalk walk(layout.shape, tensor.dtype);
    for (Chunk chunk; walk.Next(chunk);) {
      buffer_.resize(std::max<size_t>(buffer_.size(), chunk.bytes));
      for (size_t file = 0; file < layout.shards.size(); ++file) {
        if (!layout.shards[file]) continue;
        if (Failure failed = ReadShare(tensor, *layout.shards[file], file, chunk, hashers[file], at[file]))
          return failed;
      }
      full.Add(buffer_.data(), chunk.bytes);
      if (Failure failed = take(chunk)) return failed;
    }
    for (size_t file = 0; file < layout.shards.size(); ++file) {
      if (!layout.shards[file] || hashers[file].Value() == tensor.shard_hash[file]) continue;
      found_.push_back(Corrupt(inputs_->path(file), tensor.name, hashers[file].Value(), tensor.shard_hash[file]));
    }
    hash = full.Value();
    return std::nullopt;
  }

  // The stored tensors that others are made of: their shards, and that these belong together.
  Failure CheckParts() {
    std::set<const ShardedTensor*> parts;
    for (const Rebuilt& rebuilt : rebuilt_) {
      for (const HeaderTensor& tensor : rebuilt.header.tensors) {
        std::vector<std::string> names;
        if (const MadeTensor* made = Made(tensor.name)) made->recipe.AddSources(names);
        for (const std::string& name : names) parts.insert(Stored(name));
      }
    }
    for (const ShardedTensor& tensor : manifest_.tensors) {
      if (!parts.contains(&tensor)) continue;
      if (found_.size() >= kMostErrors) return std::nullopt;
      uint64_t hash = 0;
      const size_t errors_before = found_.size();
      const auto nothing = [](const Chunk&) -> Failure { return std::nullopt; };
      if (Failure failed = Assemble(tensor, nothing, hash)) return failed;
      if (found_.size() > errors_before || !tensor.hash || hash == *tensor.hash) continue;
      found_.push_back(Corrupt(sharded_.folder(), tensor.name, hash, *tensor.hash));
    }
    return std::nullopt;
  }

  // A tensor that is part of others, likewise.
  template <class Take>
  Failure Make(const HeaderTensor& stored, const WeightRecipe& recipe, const Take& take, uint64_t& hash) {
    StoredTensors parts(*this);
    Hasher full;
    ChunkWalk walk(stored.shape, stored.dtype,
                   HasReshape(recipe) ? std::max(stored.end - stored.begin, kChunkBytes) : kChunkBytes);
    for (Chunk chunk; walk.Next(chunk);) {
      buffer_.resize(std::max<size_t>(buffer_.size(), chunk.bytes));
      ShardDims dims;
      for (size_t d = 0; d < stored.shape.size(); ++d) dims.push_back({{chunk.first[d], chunk.lengths[d]}});
      if (Failure failed = ReadRecipe(recipe, parts, dims, buffer_.data())) return failed;
      full.Add(buffer_.data(), chunk.bytes);
      if (Failure failed = take(chunk)) return failed;
    }
    hash = full.Value();
    return std::nullopt;
  }

  // A file's share of a chunk into buffer_. Replicas are read and checked like everything else.
  Failure ReadShare(const ShardedTensor& tensor, const ShardDims& shard, size_t file, const Chunk& chunk,
                    Hasher& hasher, uint64_t& at) {
    const ShardDims share = ShardInChunk(shard, chunk);
    const uint64_t bytes = ShareBytes(tensor.dtype, share);
    if (bytes == 0) return std::nullopt;
    const uint64_t offset = (*offsets_[file])[static_cast<size_t>(&tensor - manifest_.tensors.data())] + at;
    // Straight to its place where it has one.
    const std::optional<uint64_t> run = OneRunOf(chunk, tensor.dtype, share);
    char* to = buffer_.data() + run.value_or(0);
    if (!run) {
      share_.resize(std::max<size_t>(share_.size(), bytes));
      to = share_.data();
    }
    if (Failure failed = inputs_->Read(file, offset, to, bytes)) return failed;
    hasher.Add(to, bytes);
    if (!run) PutIntoChunk(chunk, tensor.dtype, share, to, buffer_.data());
    at += bytes;
    Report(bytes);
    return std::nullopt;
  }

  ShardedCheckpoint& sharded_;
  const Manifest& manifest_;
  std::vector<const std::vector<uint64_t>*> offsets_;  // by rank file
  std::vector<Rebuilt> rebuilt_;
  std::map<std::string, std::string> stored_as_;  // tied names
  std::optional<InputFiles> inputs_;
};

}  // namespace

Result<ConvertSummary> MergeSharded(const std::string& sharded, const std::string& out, const ConvertOptions& options) {
  Result<ShardedCheckpoint> opened = ShardedCheckpoint::Open(sharded);
  if (!opened.ok()) return opened.diagnostics();
  return Merger(opened.value(), out, options).Run();
}

}  // namespace moonshard
