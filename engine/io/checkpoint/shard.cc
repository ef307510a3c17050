// A model directory becomes a sharded checkpoint in one pass over its bytes. W [4, 6] as shard(1) on tp=2:
//
//   source         a0 a1 a2 a3 a4 a5  b0 b1 b2 b3 b4 b5  ...
//   rank-00000     a0 a1 a2  b0 b1 b2  ...
//   rank-00001     a3 a4 a5  b3 b4 b5  ...
//
// The intervals of a shard ascend along each dim, so its elements have the order that they have in the full tensor.
// What a chunk of the source holds of a shard therefore continues what the chunks before it held: each rank file has
// one place where it is extended, and no more than a chunk is in memory.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/conversion.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/convert_files.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/storage/storage.h"

namespace moonshard {
namespace {

std::vector<std::string> PathsOf(const Checkpoint& source) {
  std::vector<std::string> paths;
  for (const CheckpointFile& file : source.files()) paths.push_back(file.path);
  return paths;
}

// The source is read once, in the order of its bytes, a chunk at a time; each rank file's share of the chunk goes to
// the end of what that file has of the tensor. A tensor's hashes are recorded in the journal when all of its shards are
// written: the tensor is the unit at which an interrupted run resumes, and what is resumed is read again and compared
// with the hashes.
class Sharder : private Conversion {
 public:
  Sharder(const Checkpoint& source, const CompiledPlan& plan, const std::string& out, const ConvertOptions& options)
      : Conversion(out, options), source_(source), plan_(plan), inputs_(PathsOf(source)) {}

  Result<ConvertSummary> Run() {
    if (Failure nested = RefuseNested(source_.path(), out())) return *nested;
    std::optional<ModelFiles> files = ListModelFiles(source_.path(), source_).Collect(found_);
    std::optional<LaidOut> laid_out = LayOut(Placed(), plan_.mesh).Collect(found_);
    if (!files || !laid_out) return found_;
    laid_out_ = std::move(*laid_out);
    Manifest& manifest = laid_out_.manifest;
    manifest.plan = plan_.plan->name;
    manifest.plan_hash = plan_.Hash();
    manifest.ties = Ties();
    manifest.kept = std::move(files->kept);
    manifest.folders = std::move(files->folders);
    CountBytes();
    return WriteThroughStaging(Work());
  }

 private:
  // The tensors in the order of the source's bytes. One that the plan's model does not have keeps the default
  // placement, which is replicated: it is in every rank file, and merging gives it back.
  std::vector<PlacedTensor> Placed() {
    by_offset_.resize(source_.tensors().size());
    std::iota(by_offset_.begin(), by_offset_.end(), 0U);
    std::ranges::sort(by_offset_, {}, [&](uint32_t t) {
      const StoredTensor& tensor = source_.tensors()[t];
      return std::pair(tensor.file, tensor.begin);
    });
    std::vector<PlacedTensor> placed;
    for (uint32_t t : by_offset_) {
      const StoredTensor& tensor = source_.tensors()[t];
      placed.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
      ParamRef param;
      if (plan_.tree->FindParameter(tensor.name, &param))
        placed.back().placement = plan_.StepsOf(param.module).params[param.param];
    }
    return placed;
  }

  std::vector<std::vector<std::string>> Ties() const {
    std::vector<std::vector<std::string>> ties;
    for (const std::vector<ParamRef>& tie : plan_.tree->ties()) {
      ties.emplace_back();
      for (ParamRef param : tie) ties.back().push_back(plan_.tree->PathOf(param));
    }
    return ties;
  }

  void CountBytes() {
    const Manifest& manifest = laid_out_.manifest;
    for (const CheckpointFile& file : source_.files()) summary_.source_bytes += file.bytes;
    for (const KeptFile& file : manifest.kept) summary_.source_bytes += file.bytes;
    for (const RankFile& file : manifest.rank_files) summary_.written_bytes += file.bytes;
    CountTensors(manifest);
  }

  // Whether OUT is what this would write: of this plan and mesh, from these bytes. Then a repeated call, also one after
  // a kill at the very end, succeeds.
  bool IsThere() override {
    std::error_code ignored;
    if (!std::filesystem::exists(out() + "/" + kManifestFile, ignored)) return false;
    const Result<ShardedCheckpoint> there = ShardedCheckpoint::Open(out());
    if (!there.ok()) return false;
    const Manifest& known = there.value().manifest();
    Manifest same = laid_out_.manifest;
    if (same.tensors.size() != known.tensors.size() || same.kept.size() != known.kept.size()) return false;
    for (size_t i = 0; i < same.tensors.size(); ++i) {
      same.tensors[i].hash = known.tensors[i].hash;
      same.tensors[i].shard_hash = known.tensors[i].shard_hash;
    }
    for (size_t i = 0; i < same.kept.size(); ++i) same.kept[i].hash = known.kept[i].hash;
    // Hashes are what this run does not know yet. They are taken from the manifest that is there, so that the texts
    // compare everything else; SourceIs then compares the hashes with the source's bytes.
    same.source = known.source;
    return same.ToText() == known.ToText() && SourceIs(known);
  }

  bool SourceIs(const Manifest& known) {
    const auto tensor_is = [&](const StoredTensor& tensor) {
      return HasHash(source_.files()[tensor.file].path, tensor.begin, tensor.bytes, known.Find(tensor.name)->hash);
    };
    return known.source.size() == source_.files().size() &&
           std::ranges::all_of(known.kept,
                               [&](const KeptFile& file) {
                                 return HasHash(source_.path() + "/" + file.name, 0, file.bytes, file.hash);
                               }) &&
           std::ranges::all_of(known.source,
                               [&](const ModelFile& file) {
                                 const Result<File> header = File::Open(out() + "/" + file.header);
                                 return header.ok() && HasHash(source_.path() + "/" + file.name, 0,
                                                               header.value().bytes(), file.header_hash);
                               }) &&
           std::ranges::all_of(source_.tensors(), tensor_is);
  }

  // What is sharded, and how: another plan or mesh, or a source that was touched, is other work. Times and inodes stand
  // for the contents, since reading the source to compare it would cost as much as the conversion; a record of the
  // journal is compared with the bytes that it describes anyway (TakeNoted).
  std::string Work() const {
    const auto stamp = [](const std::string& path) {
      struct stat status = {};
      if (::stat(path.c_str(), &status) != 0) return std::string("?");
      return std::to_string(status.st_size) + " " + std::to_string(status.st_ino) + " " +
             std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
    };
    std::string work = std::string("shard ") + kManifestVersion + " " + source_.path() + "\n" + plan_.CanonicalText();
    for (const CheckpointFile& file : source_.files()) work += file.path + " " + stamp(file.path) + "\n";
    for (const KeptFile& file : laid_out_.manifest.kept) {
      work += file.name + " " + stamp(source_.path() + "/" + file.name) + "\n";
    }
    return work;
  }

  // All offsets follow from the sizes of shards, so every header is complete before the first byte of a tensor, and
  // files get their full length at once. Tensors then fill them in any order of files, and a resumed run finds each
  // shard at the same place. The manifest comes last: it contains the hashes.
  Failure Write() override {
    Manifest& manifest = laid_out_.manifest;
    std::vector<std::string> paths;
    for (const RankFile& file : manifest.rank_files) paths.push_back(staging().PathOf(file.name));
    OutputFiles outputs(storage(), paths);
    for (size_t file = 0; file < paths.size(); ++file) {
      const std::string header = HeaderOf(laid_out_, file);
      if (Failure failed = outputs.Truncate(file, manifest.rank_files[file].bytes)) return failed;
      if (Failure failed = outputs.Write(file, 0, header.data(), header.size())) return failed;
    }
    for (size_t i = 0; i < by_offset_.size(); ++i) {
      const StoredTensor& stored = source_.tensors()[by_offset_[i]];
      if (Failure failed = WriteTensor(stored, laid_out_.order[i], outputs)) return failed;
    }
    if (Failure failed = WriteSourceForm()) return failed;
    if (Failure failed = WriteKept()) return failed;
    const std::string text = manifest.ToText();
    if (Failure failed = WriteFileIn(kManifestFile, text)) return failed;
    return staging().Commit(FilesWritten());
  }

  // The hashes of a tensor that an earlier process has written, if its bytes are there. The record in the journal is
  // compared with the bytes in the files, so a record whose data never reached the disk only costs a second write.
  bool TakeNoted(const StoredTensor& stored, uint32_t t) {
    ShardedTensor& tensor = laid_out_.manifest.tensors[t];
    const ShardLayout& layout = laid_out_.manifest.LayoutOf(tensor);
    const std::vector<uint64_t>* noted = staging().Recorded(stored.name);
    if (!noted || noted->size() != layout.shards.size() + 1) return false;
    for (size_t file = 0; file < layout.shards.size(); ++file) {
      const std::string path = staging().PathOf(laid_out_.manifest.rank_files[file].name);
      const auto bytes = static_cast<uint64_t>(ShardBytes(tensor.dtype, *layout.shards[file]));
      if (!HasHash(path, laid_out_.begin[file][t], bytes, (*noted)[file])) return false;
    }
    tensor.shard_hash.assign(noted->begin(), noted->end() - 1);
    tensor.hash = noted->back();
    summary_.resumed_bytes += stored.bytes;
    return true;
  }

  // Memory is one chunk and one share of it, whatever the size of the tensor. Two kinds of hashes are taken from the
  // same pass: one for each shard, which finds damage in a rank file, and one of the full tensor, which finds shards
  // that are intact and do not belong together.
  Failure WriteTensor(const StoredTensor& stored, uint32_t t, OutputFiles& outputs) {
    if (TakeNoted(stored, t)) {
      Report(stored.bytes);
      return std::nullopt;
    }
    const Result<const File*> opened = inputs_.At(stored.file);
    if (!opened.ok()) return opened.diagnostics().front();
    if (opened.value()->bytes() != source_.files()[stored.file].bytes) {
      Diagnostic d =
          MakeDiagnostic(Finding::kFileUnreadable, "'" + opened.value()->path() + "' changed while it was read");
      d.path = stored.name;
      return d;
    }
    ShardedTensor& tensor = laid_out_.manifest.tensors[t];
    const ShardLayout& layout = laid_out_.manifest.LayoutOf(tensor);
    std::vector<uint64_t> at;
    for (size_t file = 0; file < layout.shards.size(); ++file) at.push_back(laid_out_.begin[file][t]);
    std::vector<Hasher> hashers(layout.shards.size());
    Hasher full;
    ChunkWalk walk(stored.shape, stored.dtype);
    for (Chunk chunk; walk.Next(chunk);) {
      buffer_.resize(std::max<size_t>(buffer_.size(), chunk.bytes));
      if (Failure failed = inputs_.Read(stored.file, stored.begin + chunk.begin, buffer_.data(), chunk.bytes))
        return failed;
      full.Add(buffer_.data(), chunk.bytes);
      for (size_t file = 0; file < layout.shards.size(); ++file) {
        const ShardDims share = ShardInChunk(*layout.shards[file], chunk);
        const uint64_t bytes = ShareBytes(stored.dtype, share);
        if (bytes == 0) continue;
        share_.resize(std::max<size_t>(share_.size(), bytes));
        const char* data = TakeFromChunk(chunk, stored.dtype, share, buffer_.data(), share_.data());
        hashers[file].Add(data, bytes);
        if (Failure failed = outputs.Write(file, at[file], data, bytes)) return failed;
        at[file] += bytes;
      }
      Report(chunk.bytes);
    }
    std::vector<uint64_t> noted;
    for (const Hasher& hasher : hashers) noted.push_back(hasher.Value());
    tensor.shard_hash = noted;
    tensor.hash = full.Value();
    noted.push_back(*tensor.hash);
    return staging().Record(stored.name, noted);
  }

  // The header of each of the source's files, byte for byte: order, padding and metadata of the original are in it, and
  // merging gives the original back only with them.
  Failure WriteSourceForm() {
    for (size_t i = 0; i < source_.files().size(); ++i) {
      const CheckpointFile& file = source_.files()[i];
      const std::string name = std::filesystem::path(file.path).lexically_relative(source_.path()).string();
      ModelFile kept{name, std::string(kSourceFormDirectory) + "/" + name + ".header", file.bytes, 0};
      const Result<const File*> opened = inputs_.At(i);
      if (!opened.ok()) return opened.diagnostics().front();
      // The header is everything before the first tensor: padding behind its declared length belongs to it.
      uint64_t bytes = file.bytes;  // where the file has no tensor, or only empty ones
      for (const StoredTensor& tensor : source_.tensors()) {
        if (tensor.file == i) bytes = std::min(bytes, tensor.begin);
      }
      std::string header(bytes, '\0');
      if (Failure failed = opened.value()->Read(0, header.data(), header.size())) return failed;
      kept.header_hash = HashOf(header);
      if (Failure failed = WriteFileIn(kept.header, header)) return failed;
      laid_out_.manifest.source.push_back(std::move(kept));
      Report(bytes);
    }
    return std::nullopt;
  }

  Failure WriteKept() {
    if (Failure failed = MakeDirectories(laid_out_.manifest.folders)) return failed;
    for (KeptFile& file : laid_out_.manifest.kept) {
      const Result<uint64_t> hash = CopyTo(file.stored, source_.path() + "/" + file.name, file.bytes);
      if (!hash.ok()) return hash.diagnostics().front();
      file.hash = hash.value();
      summary_.written_bytes += file.bytes;
      Report(file.bytes);
    }
    return std::nullopt;
  }

  Failure WriteFileIn(const std::string& name, const std::string& content) {
    if (Failure failed = MakeDirectoriesFor(storage(), staging().directory(), name)) return failed;
    summary_.written_bytes += content.size();
    return WriteFile(storage(), staging().PathOf(name), content);
  }

  std::vector<std::string> FilesWritten() const {
    const Manifest& manifest = laid_out_.manifest;
    std::vector<std::string> names = {kManifestFile};
    for (const RankFile& file : manifest.rank_files) names.push_back(file.name);
    for (const ModelFile& file : manifest.source) names.push_back(file.header);
    for (const KeptFile& file : manifest.kept) names.push_back(file.stored);
    return names;
  }

  const Checkpoint& source_;
  const CompiledPlan& plan_;
  InputFiles inputs_;
  std::vector<uint32_t> by_offset_;  // of the source's tensors
  LaidOut laid_out_;
};

}  // namespace

Result<ConvertSummary> ShardModel(const Checkpoint& source, const CompiledPlan& plan, const std::string& out,
                                  const ConvertOptions& options) {
  return Sharder(source, plan, out, options).Run();
}

}  // namespace moonshard
