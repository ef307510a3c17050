// Reads any shard of any tensor from the rank files of another mesh. With W [4, 6] stored as shard(1) on two ranks, a
// rank that wants shard(0) of two, rows 0 and 1, overlaps both files:
//
//   rank-00000, [4, 3]     a0 a1 a2  b0 b1 b2  c0 ...       first 6 elements, one stretch
//   rank-00001, [4, 3]     a3 a4 a5  b3 b4 b5  c3 ...       first 6 elements, one stretch
//   wanted, [2, 6]         a0 a1 a2 a3 a4 a5  b0 ... b5     four stretches of 3, two from each file
//
// CoverShard (cover.h) finds the overlaps; here they become byte ranges. No offset of a file is used before its header
// has the hash that the manifest has for it (Offsets).
#include "engine/io/checkpoint/sharded_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/cover.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/run_directory.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/safetensors/header_json.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/runs.h"

namespace moonshard {
namespace {

// Of a shard: offset, length.
using Stretches = std::vector<std::pair<uint64_t, uint64_t>>;

// The runs of a block of a row-major tensor of this shape. False where it begins or ends within a byte. Neighbouring
// runs are joined: a block that is full in its last dims is one stretch, and a read of it one call.
bool StretchesOf(const std::vector<int64_t>& shape, const ShardDims& block, DType dtype, Stretches& out) {
  if (shape.empty()) {
    out.emplace_back(0, static_cast<uint64_t>(BytesOf(dtype, 1)));
    return true;
  }
  const ShardRuns runs(shape, block, BitsOf(dtype));
  if (!runs.FitsBytes()) return false;
  runs.Walk(0, nullptr, [&](const Run& run) -> std::optional<Diagnostic> {
    if (!out.empty() && out.back().first + out.back().second == run.from) {
      out.back().second += run.bytes;
    } else {
      out.emplace_back(run.from, run.bytes);
    }
    return std::nullopt;
  });
  return true;
}

Diagnostic WithinByte(const ShardedTensor& tensor) {
  Diagnostic d =
      MakeDiagnostic(Finding::kNotSupported, "a shard of " + QuotedName(tensor.name) + " begins or ends within a byte");
  d.path = tensor.name;
  return d;
}

// The difference between a header and the manifest about a tensor; nothing where they agree.
Failure Differs(const ShardedTensor& tensor, const std::vector<int64_t>& local, const HeaderTensor& found,
                const std::string& path) {
  if (found.dtype == tensor.dtype && found.shape == local) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kBadManifest,
                                "tensor " + QuotedName(tensor.name) + " in '" + path + "' differs from the manifest");
  d.path = tensor.name;
  d.declared = std::string(ToString(found.dtype)) + " " + ShapeToString(found.shape);
  d.required = std::string(ToString(tensor.dtype)) + " " + ShapeToString(local);
  return d;
}

}  // namespace

Diagnostic Corrupt(const std::string& file, const std::string& tensor, uint64_t found, uint64_t written) {
  Diagnostic d = MakeDiagnostic(Finding::kCorruptData,
                                tensor.empty() ? "'" + file + "' is corrupt: its hash differs from the manifest"
                                               : "tensor " + QuotedName(tensor) + " in '" + file +
                                                     "' is corrupt: its hash differs from the manifest");
  d.path = tensor.empty() ? file : tensor;
  d.declared = "XXH3 " + HashToText(found);
  d.required = "XXH3 " + HashToText(written);
  return d;
}

Result<ShardedCheckpoint> ShardedCheckpoint::Open(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  const Result<std::string> text = ReadSmallFile(path, SmallFile::kManifest);
  if (!text.ok()) {
    Diagnostic d = text.diagnostics().front();
    if (d.finding == Finding::kFileNotFound) {
      d.message = "'" + folder + "' is not a sharded checkpoint: there is no " + kManifestFile;
      d.help = "`moonshard shard` makes a sharded checkpoint from a model directory";
      const std::vector<int64_t> steps = RunDirectory(folder).Steps();
      if (!steps.empty()) {
        d.help = "it is the directory of a training run: give one of its steps, for example '" +
                 RunDirectory(folder).PathOf(steps.back()) + "'";
      }
    }
    return d;
  }
  Result<Manifest> manifest = Manifest::Parse(text.value(), path);
  if (!manifest.ok()) return manifest.diagnostics();
  ShardedCheckpoint out;
  out.folder_ = folder;
  std::vector<std::string> paths;
  for (const RankFile& rank_file : manifest.value().rank_files) paths.push_back(folder + "/" + rank_file.name);
  out.files_.emplace(std::move(paths));
  out.offsets_.resize(manifest.value().rank_files.size());
  out.manifest_ = std::make_unique<const Manifest>(std::move(manifest).value());
  return out;
}

// The header of a rank file is compared with the manifest before an offset of it is used: the length of the file, the
// hash of the header, and the dtype and shape of each tensor. Done once per file, when it is first needed: loading on
// one rank of many opens few of them.
Result<const std::vector<uint64_t>*> ShardedCheckpoint::Offsets(size_t file) {
  if (offsets_[file]) return offsets_[file].get();
  const RankFile& expected = manifest_->rank_files[file];
  const Result<const File*> opened = files_->At(file);
  if (!opened.ok()) return opened.diagnostics();
  const File& in = *opened.value();
  if (in.bytes() != expected.bytes) {
    Diagnostic d =
        MakeDiagnostic(Finding::kCorruptData, "'" + in.path() + "' is corrupt: its size differs from the manifest");
    d.path = in.path();
    d.declared = std::to_string(in.bytes()) + " bytes";
    d.required = std::to_string(expected.bytes) + " bytes";
    return d;
  }
  uint64_t length = 0;  // of the header; a wrong one is found by the hash
  if (Failure failed = in.Read(0, &length, std::min<uint64_t>(kHeaderLengthBytes, in.bytes()))) return *failed;
  const uint64_t bytes = std::min(in.bytes(), kHeaderLengthBytes + std::min(length, kMaxHeaderBytes));
  std::string head(bytes, '\0');
  if (Failure failed = in.Read(0, head.data(), bytes)) return *failed;
  const uint64_t hash = HashOf(head);
  if (hash != expected.header_hash) {
    Diagnostic d = Corrupt(in.path(), "", hash, expected.header_hash);
    d.message = "the header of " + d.message;
    return d;
  }
  Result<Header> header = ParseHeader(head, in.bytes(), in.path());
  if (!header.ok()) return header.diagnostics();
  auto begins = std::make_unique<std::vector<uint64_t>>(manifest_->tensors.size(), 0);
  Diagnostics errors;
  size_t found = 0;
  for (const HeaderTensor& tensor : header.value().tensors) {
    const ShardedTensor* known = manifest_->Find(tensor.name);
    if (!known || !manifest_->LayoutOf(*known).shards[file]) continue;
    ++found;
    const std::vector<int64_t> local = LocalShapeOf(*manifest_->LayoutOf(*known).shards[file]);
    if (Failure differs = Differs(*known, local, tensor, in.path())) errors.push_back(std::move(*differs));
    (*begins)[static_cast<size_t>(known - manifest_->tensors.data())] = header.value().data_begin + tensor.begin;
  }
  const auto has = [&](const ShardedTensor& tensor) { return manifest_->LayoutOf(tensor).shards[file].has_value(); };
  if (found != static_cast<size_t>(std::ranges::count_if(manifest_->tensors, has))) {
    errors.push_back(MakeDiagnostic(
        Finding::kBadManifest, "'" + in.path() + "' does not contain all tensors that the manifest assigns to it"));
  }
  if (!errors.empty()) return errors;
  offsets_[file] = std::move(begins);
  return offsets_[file].get();
}

// An overlap is the same block of elements in two row-major shapes: the stored shard's and the wanted one's. Each gives
// a list of stretches of bytes, in the same order of elements but divided at other places. Walking both lists at once,
// and taking the shorter of the two current stretches at each step, gives ranges that are contiguous on both sides.
Result<std::vector<ByteRange>> ShardedCheckpoint::Locate(const ShardedTensor& tensor, const ShardDims& wanted) {
  const ShardLayout& layout = manifest_->LayoutOf(tensor);
  const std::optional<std::vector<Overlap>> overlaps = CoverShard(wanted, layout.shards);
  Check(overlaps.has_value(), "the shard is not within its tensor");
  std::vector<ByteRange> ranges;
  for (const Overlap& overlap : *overlaps) {
    const Result<const std::vector<uint64_t>*> offsets = Offsets(overlap.shard);
    if (!offsets.ok()) return offsets.diagnostics();
    Stretches from;
    Stretches to;
    if (!StretchesOf(LocalShapeOf(*layout.shards[overlap.shard]), overlap.stored, tensor.dtype, from) ||
        !StretchesOf(LocalShapeOf(wanted), overlap.wanted, tensor.dtype, to)) {
      return WithinByte(tensor);
    }
    const uint64_t begin = (*offsets.value())[static_cast<size_t>(&tensor - manifest_->tensors.data())];
    for (size_t i = 0, j = 0; i < from.size() && j < to.size();) {
      const uint64_t bytes = std::min(from[i].second, to[j].second);
      ranges.push_back({overlap.shard, begin + from[i].first, bytes, to[j].first});
      from[i] = {from[i].first + bytes, from[i].second - bytes};
      to[j] = {to[j].first + bytes, to[j].second - bytes};
      if (from[i].second == 0) ++i;
      if (to[j].second == 0) ++j;
    }
  }
  return ranges;
}

// Each overlap is read as one block, with the reader's own merging of short runs, straight to its place if it is
// contiguous in the destination, else through a buffer and scattered from there. Only a stored shard that is the wanted
// one as it is has a hash for exactly these bytes; CheckShard compares the others.
Failure ShardedCheckpoint::ReadShard(const ShardedTensor& tensor, const ShardDims& wanted, void* destination) {
  const ShardLayout& layout = manifest_->LayoutOf(tensor);
  const std::optional<std::vector<Overlap>> overlaps = CoverShard(wanted, layout.shards);
  Check(overlaps.has_value(), "the shard is not within its tensor");
  char* out = static_cast<char*>(destination);
  for (const Overlap& overlap : *overlaps) {
    const Result<const std::vector<uint64_t>*> offsets = Offsets(overlap.shard);
    if (!offsets.ok()) return offsets.diagnostics().front();
    const Result<const File*> file = files_->At(overlap.shard);
    if (!file.ok()) return file.diagnostics().front();
    const ShardDims& shard = *layout.shards[overlap.shard];
    StoredTensor stored{tensor.name, tensor.dtype, LocalShapeOf(shard)};
    stored.begin = (*offsets.value())[static_cast<size_t>(&tensor - manifest_->tensors.data())];
    stored.bytes = static_cast<uint64_t>(ShardBytes(tensor.dtype, shard));
    Stretches to;
    if (!StretchesOf(LocalShapeOf(wanted), overlap.wanted, tensor.dtype, to)) return WithinByte(tensor);
    const auto bytes = static_cast<uint64_t>(ShardBytes(tensor.dtype, overlap.wanted));
    char* block = out + to.front().first;
    if (to.size() > 1) {
      block_.resize(std::max<size_t>(block_.size(), bytes));
      block = block_.data();
    }
    if (Failure failed = ReadShardOf(*file.value(), stored, overlap.stored, block, window_)) return failed;
    if (shard == wanted) {
      const uint64_t hash = HashOf({block, bytes});
      const uint64_t written = tensor.shard_hash[overlap.shard];
      if (hash != written) return Corrupt(file.value()->path(), tensor.name, hash, written);
    }
    for (size_t i = 0, done = 0; to.size() > 1 && i < to.size(); done += to[i++].second) {
      std::memcpy(out + to[i].first, block + done, to[i].second);
    }
  }
  return std::nullopt;
}

Failure ShardedCheckpoint::CheckShard(const ShardedTensor& tensor, size_t file) {
  const std::optional<ShardDims>& shard = manifest_->LayoutOf(tensor).shards[file];
  if (!shard) return std::nullopt;
  const Result<const std::vector<uint64_t>*> offsets = Offsets(file);
  if (!offsets.ok()) return offsets.diagnostics().front();
  const Result<const File*> opened = files_->At(file);
  if (!opened.ok()) return opened.diagnostics().front();
  const uint64_t begin = (*offsets.value())[static_cast<size_t>(&tensor - manifest_->tensors.data())];
  const Result<uint64_t> hash =
      HashFile(*opened.value(), begin, static_cast<uint64_t>(ShardBytes(tensor.dtype, *shard)));
  if (!hash.ok()) return hash.diagnostics().front();
  if (hash.value() == tensor.shard_hash[file]) return std::nullopt;
  return Corrupt(opened.value()->path(), tensor.name, hash.value(), tensor.shard_hash[file]);
}

}  // namespace moonshard
