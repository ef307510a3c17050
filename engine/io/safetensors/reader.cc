#include "engine/io/safetensors/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/io/safetensors/header_json.h"
#include "engine/io/safetensors/runs.h"

namespace moonshard {
namespace {

// A run at least this long gets a call of its own; shorter ones share windows of the file.
constexpr uint64_t kDirectBytes = 1024;
constexpr uint64_t kWindowBytes = uint64_t{256} * 1024;
// The largest gap between two runs that is read too, to save a call.
constexpr uint64_t kMostGapBytes = 4096;

// How far ahead of the reading the system is advised to fetch, in steps that it does not shorten.
constexpr uint64_t kAheadBytes = uint64_t{16} * 1024 * 1024;
constexpr uint64_t kAheadStep = uint64_t{512} * 1024;
// Up to so many bytes of the file for each byte of the shard, the bytes between the runs are fetched too: on one
// machine the other ranks need them.
constexpr uint64_t kSparsest = 16;

// Asks the system for the bytes of a shard some way ahead of the reading. A file that is not in the page cache then
// comes five to ten times as fast, from storage that answers late but many requests at a time; one that is costs 5 %
// more.
class FetchAhead {
 public:
  FetchAhead(const File& file, uint64_t begin, uint64_t end, uint64_t shard_bytes)
      : file_(file), next_(begin), end_(end - begin > kSparsest * shard_bytes ? begin : end) {}

  void Reached(uint64_t offset) {
    while (next_ < end_ && next_ < offset + kAheadBytes) {
      // Advice only: that it fails changes nothing but the speed.
      (void)::posix_fadvise(file_.descriptor(), static_cast<off_t>(next_),
                            static_cast<off_t>(std::min(kAheadStep, end_ - next_)), POSIX_FADV_WILLNEED);
      next_ += kAheadStep;
    }
  }

 private:
  const File& file_;
  uint64_t next_;
  uint64_t end_;
};

// Reads runs: long ones by themselves, short ones that are close together through a window.
class RunReader {
 public:
  RunReader(const File& file, FetchAhead ahead, std::vector<char>& window)
      : file_(file), ahead_(ahead), window_(window) {}

  std::optional<Diagnostic> Take(const Run& run) {
    if (run.bytes >= kDirectBytes) {
      if (std::optional<Diagnostic> error = Flush()) return error;
      return ReadDirect(run);
    }
    const bool joins = !waiting_.empty() && run.from >= end_ && run.from - end_ <= kMostGapBytes &&
                       run.from + run.bytes - waiting_.front().from <= kWindowBytes;
    if (!joins) {
      if (std::optional<Diagnostic> error = Flush()) return error;
    }
    waiting_.push_back(run);
    end_ = run.from + run.bytes;
    return std::nullopt;
  }

  std::optional<Diagnostic> Flush() {
    if (waiting_.empty()) return std::nullopt;
    const uint64_t begin = waiting_.front().from;
    window_.resize(kWindowBytes);
    ahead_.Reached(begin);
    if (std::optional<Diagnostic> error = file_.Read(begin, window_.data(), end_ - begin)) return error;
    for (const Run& run : waiting_) std::memcpy(run.to, window_.data() + (run.from - begin), run.bytes);
    waiting_.clear();
    return std::nullopt;
  }

 private:
  // A long run is read in steps, so that the fetching keeps ahead of it.
  std::optional<Diagnostic> ReadDirect(const Run& run) {
    for (uint64_t done = 0; done < run.bytes; done += kStepBytes) {
      ahead_.Reached(run.from + done);
      const uint64_t bytes = std::min(kStepBytes, run.bytes - done);
      if (std::optional<Diagnostic> error = file_.Read(run.from + done, run.to + done, bytes)) return error;
    }
    return std::nullopt;
  }
  static constexpr uint64_t kStepBytes = uint64_t{4} * 1024 * 1024;

  const File& file_;
  FetchAhead ahead_;
  std::vector<char>& window_;
  std::vector<Run> waiting_;
  uint64_t end_ = 0;  // of the last waiting run
};

}  // namespace

std::vector<std::vector<Interval>> FullShard(std::span<const int64_t> shape) {
  std::vector<std::vector<Interval>> dims;
  for (int64_t size : shape) {
    dims.emplace_back();
    if (size > 0) dims.back().push_back({0, size});
  }
  return dims;
}

std::vector<int64_t> ShardShape(std::span<const std::vector<Interval>> dims) {
  std::vector<int64_t> shape;
  for (const std::vector<Interval>& intervals : dims) {
    shape.push_back(0);
    for (const Interval& interval : intervals) shape.back() += interval.length;
  }
  return shape;
}

int64_t ShardBytes(DType dtype, std::span<const std::vector<Interval>> dims) {
  const std::vector<int64_t> shape = ShardShape(dims);
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return BytesOf(dtype, elements);
}

std::optional<Diagnostic> ShardReader::OpenFileOf(const StoredTensor& tensor) {
  const CheckpointFile& wanted = checkpoint_.files()[tensor.file];
  if (checkpoint_.header_only()) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported,
                       "'" + wanted.path + "' cannot be read: a file of this checkpoint has a header but no data");
    d.path = tensor.name;
    return d;
  }
  if (file_ && open_ == tensor.file) return std::nullopt;
  file_.reset();
  Result<File> opened = File::Open(wanted.path);
  if (!opened.ok()) return opened.diagnostics().front();
  if (opened.value().bytes() != wanted.bytes) {
    Diagnostic d = MakeDiagnostic(Finding::kFileUnreadable, "'" + wanted.path + "' changed after its header was read");
    d.path = tensor.name;
    d.declared = std::to_string(opened.value().bytes()) + " bytes";
    d.required = std::to_string(wanted.bytes) + " bytes";
    return d;
  }
  file_.emplace(std::move(opened).value());
  open_ = tensor.file;
  return std::nullopt;
}

std::optional<Diagnostic> ShardReader::ReadShard(const StoredTensor& tensor,
                                                 std::span<const std::vector<Interval>> dims, void* destination) {
  if (ShardBytes(tensor.dtype, dims) == 0) return std::nullopt;
  if (std::optional<Diagnostic> error = OpenFileOf(tensor)) return error;
  return ReadShardOf(*file_, tensor, dims, destination, window_);
}

std::optional<Diagnostic> ReadShardOf(const File& file, const StoredTensor& tensor,
                                      std::span<const std::vector<Interval>> dims, void* destination,
                                      std::vector<char>& window) {
  Check(dims.size() == tensor.shape.size(), "a shard needs intervals for every dim of the tensor");
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const Interval& i : dims[d]) {
      Check(i.begin >= 0 && i.length >= 0 && i.length <= tensor.shape[d] && i.begin <= tensor.shape[d] - i.length,
            "the intervals of a shard must be within the dim");
    }
  }
  if (ShardBytes(tensor.dtype, dims) == 0) return std::nullopt;
  if (dims.empty()) return file.Read(tensor.begin, destination, tensor.bytes);
  const ShardRuns runs(tensor.shape, dims, BitsOf(tensor.dtype));
  if (!runs.FitsBytes()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "a shard of " + QuotedName(tensor.name) + " begins or ends within a byte");
    d.path = tensor.name;
    d.declared = std::string(ToString(tensor.dtype)) + " " + ShapeToString(tensor.shape);
    return d;
  }
  const auto [first, last] = runs.Span();
  const auto shard_bytes = static_cast<uint64_t>(ShardBytes(tensor.dtype, dims));
  RunReader reader(file, FetchAhead(file, tensor.begin + first, tensor.begin + last, shard_bytes), window);
  const auto take = [&](const Run& run) { return reader.Take(run); };
  if (std::optional<Diagnostic> error = runs.Walk(tensor.begin, static_cast<char*>(destination), take)) return error;
  return reader.Flush();
}

std::optional<Diagnostic> ShardReader::ReadFull(const StoredTensor& tensor, void* destination) {
  return ReadShard(tensor, FullShard(tensor.shape), destination);
}

}  // namespace moonshard
