#include "engine/safetensors/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/base/text.h"
#include "engine/safetensors/header_json.h"

namespace moonshard {
namespace {

// A run at least this long gets a call of its own; shorter ones share windows of the file.
constexpr uint64_t kDirectBytes = 1024;
constexpr uint64_t kWindowBytes = uint64_t{256} * 1024;
// Bytes that nobody asked for and that are read all the same to save a call.
constexpr uint64_t kMostGapBytes = 4096;

// How far ahead of the reading the system is asked to fetch, in steps that it does not cut short.
constexpr uint64_t kAheadBytes = uint64_t{16} * 1024 * 1024;
constexpr uint64_t kAheadStep = uint64_t{512} * 1024;
// Bytes of the file for each byte of the piece up to which what lies between the runs is fetched too: on one machine
// the other ranks need it.
constexpr uint64_t kSparsest = 16;

// Bytes that are neighbours in the file and in the piece.
struct Run {
  uint64_t from = 0;  // offset in the file
  char* to = nullptr;
  uint64_t bytes = 0;
};

using RunSink = std::function<std::optional<Diagnostic>(const Run&)>;

bool IsWhole(const std::vector<Interval>& intervals, int64_t size) {
  return intervals.size() == 1 && intervals[0] == Interval{0, size};
}

// The runs of a piece in the order of its bytes. Dims from `inner` on make one run: all but `inner` itself are whole.
class Runs {
 public:
  Runs(std::span<const int64_t> shape, std::span<const std::vector<Interval>> dims, int64_t bits)
      : shape_(shape), dims_(dims), unit_bits_(shape.size(), bits) {
    for (size_t d = shape.size(); d-- > 1;) unit_bits_[d - 1] = unit_bits_[d] * shape[d];
    while (inner_ + 1 < shape.size() && !RestIsWhole(inner_ + 1)) ++inner_;
  }
  // Bytes from the first run's begin to the last run's end, as offsets from the tensor's begin; the piece is not empty.
  std::pair<uint64_t, uint64_t> Span() const {
    int64_t first = 0;
    int64_t last = 0;
    for (size_t d = 0; d <= inner_; ++d) {
      int64_t least = shape_[d];
      int64_t most = 0;
      for (const Interval& i : dims_[d]) {
        if (i.length == 0) continue;
        least = std::min(least, i.begin);
        most = std::max(most, i.begin + i.length);
      }
      first += least * unit_bits_[d];
      last += (d == inner_ ? most : most - 1) * unit_bits_[d];
    }
    return {static_cast<uint64_t>(first / 8), static_cast<uint64_t>(last / 8)};
  }
  // Whether every run begins and ends at a byte.
  bool FitsBytes() const {
    for (size_t d = 0; d < inner_; ++d) {
      if (unit_bits_[d] % 8 != 0) return false;
    }
    return std::ranges::all_of(dims_[inner_], [&](const Interval& i) {
      return i.begin * unit_bits_[inner_] % 8 == 0 && i.length * unit_bits_[inner_] % 8 == 0;
    });
  }
  std::optional<Diagnostic> Walk(uint64_t begin, char* to, const RunSink& sink) const {
    char* next = to;
    return WalkDim(0, begin, next, sink);
  }

 private:
  bool RestIsWhole(size_t from) const {
    for (size_t d = from; d < shape_.size(); ++d) {
      if (!IsWhole(dims_[d], shape_[d])) return false;
    }
    return true;
  }
  std::optional<Diagnostic> WalkDim(size_t d, uint64_t begin, char*& next, const RunSink& sink) const {
    for (const Interval& interval : dims_[d]) {
      if (d == inner_) {
        const Run run{begin + static_cast<uint64_t>(interval.begin * unit_bits_[d] / 8), next,
                      static_cast<uint64_t>(interval.length * unit_bits_[d] / 8)};
        next += run.bytes;
        if (std::optional<Diagnostic> error = sink(run)) return error;
        continue;
      }
      for (int64_t i = interval.begin; i < interval.begin + interval.length; ++i) {
        const auto offset = static_cast<uint64_t>(i * unit_bits_[d] / 8);
        if (std::optional<Diagnostic> error = WalkDim(d + 1, begin + offset, next, sink)) return error;
      }
    }
    return std::nullopt;
  }

  std::span<const int64_t> shape_;
  std::span<const std::vector<Interval>> dims_;
  std::vector<int64_t> unit_bits_;  // of one index of each dim
  size_t inner_ = 0;
};

// Asks the system for the bytes of a piece some way ahead of the reading. A file that is not in the page cache then
// comes five to ten times as fast, from storage that answers late but many requests at a time; one that is costs 5 %
// more.
class FetchAhead {
 public:
  FetchAhead(const File& file, uint64_t begin, uint64_t end, uint64_t piece_bytes)
      : file_(file), next_(begin), end_(end - begin > kSparsest * piece_bytes ? begin : end) {}

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

// Reads runs: long ones by themselves, short ones that lie close together through a window.
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

std::vector<std::vector<Interval>> WholePiece(std::span<const int64_t> shape) {
  std::vector<std::vector<Interval>> dims;
  for (int64_t size : shape) {
    dims.emplace_back();
    if (size > 0) dims.back().push_back({0, size});
  }
  return dims;
}

std::vector<int64_t> PieceShape(std::span<const std::vector<Interval>> dims) {
  std::vector<int64_t> shape;
  for (const std::vector<Interval>& intervals : dims) {
    shape.push_back(0);
    for (const Interval& interval : intervals) shape.back() += interval.length;
  }
  return shape;
}

int64_t PieceBytes(DType dtype, std::span<const std::vector<Interval>> dims) {
  const std::vector<int64_t> shape = PieceShape(dims);
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return BytesOf(dtype, elements);
}

std::optional<Diagnostic> PieceReader::OpenFileOf(const StoredTensor& tensor) {
  const CheckpointFile& wanted = checkpoint_.files()[tensor.file];
  if (checkpoint_.header_only()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "'" + wanted.path + "' was opened for its header alone");
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

std::optional<Diagnostic> PieceReader::ReadPiece(const StoredTensor& tensor,
                                                 std::span<const std::vector<Interval>> dims, void* destination) {
  Check(dims.size() == tensor.shape.size(), "a piece needs intervals for every dim of the tensor");
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const Interval& i : dims[d]) {
      Check(i.begin >= 0 && i.length >= 0 && i.length <= tensor.shape[d] && i.begin <= tensor.shape[d] - i.length,
            "an interval outside its dim");
    }
  }
  if (PieceBytes(tensor.dtype, dims) == 0) return std::nullopt;
  if (std::optional<Diagnostic> error = OpenFileOf(tensor)) return error;
  if (dims.empty()) return file_->Read(tensor.begin, destination, tensor.bytes);
  const Runs runs(tensor.shape, dims, BitsOf(tensor.dtype));
  if (!runs.FitsBytes()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported,
                                  "a piece of " + QuotedName(tensor.name) + " begins or ends within a byte");
    d.path = tensor.name;
    d.declared = std::string(ToString(tensor.dtype)) + " " + ShapeToString(tensor.shape);
    return d;
  }
  const auto [first, last] = runs.Span();
  const auto piece_bytes = static_cast<uint64_t>(PieceBytes(tensor.dtype, dims));
  RunReader reader(*file_, FetchAhead(*file_, tensor.begin + first, tensor.begin + last, piece_bytes), window_);
  const auto take = [&](const Run& run) { return reader.Take(run); };
  if (std::optional<Diagnostic> error = runs.Walk(tensor.begin, static_cast<char*>(destination), take)) return error;
  return reader.Flush();
}

std::optional<Diagnostic> PieceReader::ReadWhole(const StoredTensor& tensor, void* destination) {
  return ReadPiece(tensor, WholePiece(tensor.shape), destination);
}

}  // namespace moonshard
