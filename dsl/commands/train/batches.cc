// A row of the run has one number, `place`: rows of the steps before, then micro-batches, then data-parallel ranks,
// then rows of a rank. It determines the pass and the position in it, and by the shuffle the row of the data. Nothing
// is stored or exchanged: each rank computes its own rows, ranks of the same data-parallel coordinates compute the same
// ones, and the position of a run is one number. A run that is resumed on another mesh takes the rows up where the
// saved one stopped, because `batch` rows of a step are the same set for any number of ranks. The order is defined by
// the seed and by the number of rows of the data, so a saved position is valid only for the same data. The saved text
// contains both, and Seek compares them.
#include "dsl/commands/train/batches.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "dsl/commands/train/shuffle.h"

namespace moonshard {

Batches::Batches(std::shared_ptr<const Rows> rows, const DeviceMesh& mesh, const BatchOptions& options)
    : source_(std::move(rows)),
      options_(options),
      device_(mesh.device()),
      place_(mesh.shape().DataCoordinate(mesh.rank())),
      ranks_(mesh.shape().data_ranks()) {}

Result<Batches> Batches::Make(std::shared_ptr<const Rows> rows, const DeviceMesh& mesh, const BatchOptions& options) {
  Batches out(std::move(rows), mesh, options);
  if (options.batch % (out.ranks_ * options.micro_batches) == 0) return out;
  Diagnostic d =
      MakeDiagnostic(Finding::kBadInput, "a batch of " + std::to_string(options.batch) + " is not divisible by " +
                                             std::to_string(out.ranks_) + " data-parallel ranks times " +
                                             std::to_string(options.micro_batches) + " micro-batches");
  d.path = "--batch";
  d.required = "a multiple of " + std::to_string(out.ranks_ * options.micro_batches);
  return d;
}

Batch Batches::Finish(NamedTensors tensors, bool counts) const {
  Batch out;
  out.counted = source_->Count(tensors);
  if (!counts) out.counted = 0;
  // From pinned memory the copy to a GPU does not wait for the kernels of the previous step.
  for (auto& [name, tensor] : tensors) {
    if (device_.is_cpu()) {
      out.tensors[name] = tensor;
      continue;
    }
    const at::Tensor& host = out.on_host[name] = tensor.pin_memory();
    out.tensors[name] = host.to(device_, host.scalar_type(), /*non_blocking=*/true);
  }
  return out;
}

Batch Batches::Next(int64_t micro) const {
  const NamedTensors out = source_->Allocate(share());
  for (int64_t row = 0; row < share(); ++row) {
    const int64_t place = taken_ + (micro * ranks_ + place_) * share() + row;
    const int64_t rows = source_->count();
    source_->Read(Shuffled(options_.seed, place / rows, rows, place % rows), out, row);
  }
  return Finish(out, true);
}

int64_t Batches::RowsOfPart(int64_t i) const {
  const int64_t first = i * options_.batch + place_ * share();
  return std::clamp<int64_t>(source_->count() - first, 0, share());
}

Batch Batches::Part(int64_t i) const {
  const int64_t rows = RowsOfPart(i);
  const int64_t first = i * options_.batch + place_ * share();
  const bool copies = rows == 0 && !source_->fills();
  const NamedTensors out = source_->Allocate(rows > 0 && !source_->fills() ? rows : share());
  for (int64_t row = 0; row < (copies ? share() : rows); ++row) source_->Read(copies ? 0 : first + row, out, row);
  return Finish(out, !copies);
}

std::vector<Batch> Batches::Shapes(bool held_out) const {
  std::set<int64_t> sizes;
  if (!held_out) sizes.insert(share());
  for (const int64_t part : held_out ? std::vector<int64_t>{0, parts() - 1} : std::vector<int64_t>()) {
    const int64_t rows = RowsOfPart(part);
    sizes.insert(rows > 0 && !source_->fills() ? rows : share());
  }
  std::vector<Batch> out;
  for (const int64_t rows : sizes) {
    Batch& batch = out.emplace_back();
    for (const auto& [name, tensor] : source_->Allocate(rows)) {
      batch.tensors[name] = at::empty(tensor.sizes(), tensor.options().device(at::kMeta));
    }
  }
  return out;
}

std::string Batches::Position() const {
  JsonValue::Object out = {{"rows", taken_}, {"seed", std::to_string(options_.seed)}, {"data", source_->Describe()}};
  if (const std::optional<int64_t> sequence = source_->sequence()) out["sequence"] = *sequence;
  return WriteJson(out, 0);
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
    const JsonValue* current = now.Find(key);
    if (before == nullptr ? current == nullptr : current != nullptr && *before == *current) continue;
    const auto text = [](const JsonValue* value) {
      return value == nullptr ? "nothing" : value->is_string() ? value->AsString() : WriteJson(*value, 0);
    };
    Diagnostic d =
        MakeDiagnostic(Finding::kBadInput, "the run was saved with other data: --" + std::string(key) + " differs");
    d.path = "--" + std::string(key);
    d.declared = text(current);
    d.required = text(before) + ", as saved";
    d.help = "resume with the same --data, --sequence and --seed, or with --accept-changes data";
    if (accept) d.severity = Severity::kWarning;
    found.push_back(std::move(d));
  }
  if (!HasErrors(found)) taken_ = rows->AsInt();
  return found;
}

}  // namespace moonshard
