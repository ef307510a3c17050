// A row of the run has one number, `place`: rows of the steps before, then micro-batches, then data-parallel ranks,
// then rows of a rank. It determines the pass and the position in it, and by the shuffle the window. Nothing is stored
// or exchanged: each rank computes the windows of its own rows, ranks of the same data-parallel coordinates compute the
// same ones, and the position of a run is one number. A run that is resumed on another mesh takes the rows up where the
// saved one stopped, because `batch` rows of a step are the same set for any number of ranks.
// The order is defined by the seed and by the number of windows, so a saved position is valid only for the same data.
// The saved text contains both, and Seek compares them.
#include "dsl/commands/train/batches.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dsl/commands/train/shuffle.h"

namespace moonshard {

Batches::Batches(TokenFiles files, const DeviceMesh& mesh, const BatchOptions& options)
    : files_(std::move(files)),
      options_(options),
      device_(mesh.device()),
      place_(mesh.shape().DataCoordinate(mesh.rank())),
      ranks_(mesh.shape().data_ranks()) {}

Result<Batches> Batches::Make(TokenFiles files, const DeviceMesh& mesh, const BatchOptions& options) {
  Batches out(std::move(files), mesh, options);
  if (options.batch % (out.ranks_ * options.micro_batches) == 0) return out;
  Diagnostic d =
      MakeDiagnostic(Finding::kBadInput, "a batch of " + std::to_string(options.batch) + " is not divisible by " +
                                             std::to_string(out.ranks_) + " data-parallel ranks times " +
                                             std::to_string(options.micro_batches) + " micro-batches");
  d.path = "--batch";
  d.required = "a multiple of " + std::to_string(out.ranks_ * options.micro_batches);
  return d;
}

Batch Batches::Empty() const {
  const int64_t rows = options_.batch / (ranks_ * options_.micro_batches);
  return {at::zeros({rows, files_.sequence()}, at::kLong), at::full({rows, files_.sequence()}, -100, at::kLong)};
}

void Batches::ReadRow(int64_t window, const Batch& batch, int64_t row) const {
  std::vector<int64_t> tokens(static_cast<size_t>(files_.sequence() + 1));
  files_.Read(window, tokens.data());
  std::copy(tokens.begin(), tokens.end() - 1, batch.ids[row].mutable_data_ptr<int64_t>());
  std::copy(tokens.begin() + 1, tokens.end(), batch.targets[row].mutable_data_ptr<int64_t>());
}

Batch Batches::Next(int64_t micro) const {
  const Batch batch = Empty();
  const int64_t rows = batch.ids.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = rows_ + (micro * ranks_ + place_) * rows + row;
    const int64_t windows = files_.windows();
    ReadRow(Shuffled(options_.seed, place / windows, windows, place % windows), batch, row);
  }
  return {batch.ids.to(device_), batch.targets.to(device_)};
}

// Rows of held-out data in file order. The last part may have rows without a window: they have no target, so they add
// nothing to the loss, and all ranks still have a batch of the same shape. A rank without rows must take part in the
// collectives of the forward.
Batch Batches::Part(int64_t i) const {
  const Batch batch = Empty();
  const int64_t rows = batch.ids.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t window = i * options_.batch + place_ * rows + row;
    if (window < files_.windows()) ReadRow(window, batch, row);
  }
  return {batch.ids.to(device_), batch.targets.to(device_)};
}

std::string Batches::Position() const {
  return WriteJson(JsonValue::Object{{"rows", rows_},
                                     {"seed", std::to_string(options_.seed)},
                                     {"sequence", files_.sequence()},
                                     {"data", files_.Describe()}},
                   0);
}

Diagnostics Batches::Seek(const std::string& position, bool accept) {
  Diagnostics found;
  const std::optional<JsonValue> saved = ParseJson(position, "the data position").Collect(found);
  if (!saved) return found;
  const JsonValue* rows = saved->Find("rows");
  const int64_t most = std::numeric_limits<int64_t>::max() / 2 - options_.batch;
  if (rows == nullptr || !rows->is_int() || rows->AsInt() < 0 || rows->AsInt() > most) {
    Diagnostic d = MakeDiagnostic(Finding::kBadManifest, "the saved position in the data is invalid");
    d.declared = rows == nullptr ? "no 'rows'" : "rows " + WriteJson(*rows, 0);
    d.required = "rows: the number of rows that the run has read";
    return {d};
  }
  const JsonValue now = ParseJson(Position(), "the data position").ValueOrThrow();
  for (const char* key : {"data", "sequence", "seed"}) {
    const JsonValue* before = saved->Find(key);
    if (before != nullptr && *before == *now.Find(key)) continue;
    const auto text = [](const JsonValue* value) {
      return value == nullptr ? "nothing" : value->is_string() ? value->AsString() : WriteJson(*value, 0);
    };
    Diagnostic d =
        MakeDiagnostic(Finding::kBadInput, "the run was saved with other data: --" + std::string(key) + " differs");
    d.path = "--" + std::string(key);
    d.declared = text(now.Find(key));
    d.required = text(before) + ", as saved";
    d.help = "resume with the same --data, --sequence and --seed, or with --accept-changes data";
    if (accept) d.severity = Severity::kWarning;
    found.push_back(std::move(d));
  }
  if (!HasErrors(found)) rows_ = rows->AsInt();
  return found;
}

}  // namespace moonshard
