#include "engine/runtime/apply/load.h"

#include <algorithm>
#include <set>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "engine/core/base/text.h"
#include "engine/io/safetensors/reader.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/scalar_type.h"

namespace moonshard {
namespace {

const StoredTensor* FindTensor(const LiveParameter& parameter, const Checkpoint& checkpoint) {
  if (const StoredTensor* found = checkpoint.Find(parameter.path)) return found;
  for (const std::string& alias : parameter.aliases) {
    if (const StoredTensor* found = checkpoint.Find(alias)) return found;
  }
  return nullptr;
}

Diagnostic Missing(const LiveParameter& parameter, const Checkpoint& checkpoint) {
  Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "the checkpoint has no tensor '" + parameter.path + "'");
  d.path = checkpoint.path();
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  d.help = DidYouMean(parameter.path, names, 0);
  return d;
}

struct Read {
  const LiveParameter* parameter;
  const StoredTensor* stored;
};

void ReadInto(ShardReader& reader, const Read& read, const std::vector<std::vector<Interval>>& shard) {
  at::Tensor target = read.parameter->tensor.detach();
  const std::optional<c10::ScalarType> type = ScalarTypeOf(read.stored->dtype);
  Check(type.has_value(), "a stored dtype that was not checked");
  const bool direct = target.is_cpu() && target.is_contiguous() && target.scalar_type() == *type;
  at::Tensor buffer = direct ? target : at::empty(target.sizes(), at::TensorOptions().dtype(*type));
  if (std::optional<Diagnostic> error = reader.ReadShard(*read.stored, shard, buffer.mutable_data_ptr())) {
    throw PlanError({*error});
  }
  if (direct) {
    target.unsafeGetTensorImpl()->bump_version();  // fsdp may have gathered what was here before
  } else {
    target.copy_(buffer);
  }
}

}  // namespace

Diagnostics LoadCheckpoint(AppliedPlan& model, const Checkpoint& checkpoint) {
  const c10::NoGradGuard no_grad;
  Diagnostics errors;
  std::vector<Read> reads;
  std::set<std::string> used;
  for (const LiveParameter& parameter : model.parameters()) {
    const StoredTensor* stored = FindTensor(parameter, checkpoint);
    used.insert(parameter.path);
    used.insert(parameter.aliases.begin(), parameter.aliases.end());
    if (stored == nullptr) {
      if (!parameter.is_buffer) errors.push_back(Missing(parameter, checkpoint));
      continue;
    }
    if (stored->shape != parameter.shape || !ScalarTypeOf(stored->dtype)) {
      Diagnostic d = MakeDiagnostic(Finding::kTensorMismatch,
                                    "tensor '" + stored->name + "' of the checkpoint is not the model's");
      d.path = checkpoint.files()[stored->file].path;
      d.declared = std::string(ToString(stored->dtype)) + " " + ShapeToString(stored->shape);
      d.required = ShapeToString(parameter.shape);
      errors.push_back(std::move(d));
      continue;
    }
    reads.push_back({&parameter, stored});
  }
  if (!errors.empty()) throw PlanError(std::move(errors));

  // In the order of the files, so that each is read from front to back.
  std::ranges::sort(reads, {}, [](const Read& r) { return std::pair(r.stored->file, r.stored->begin); });
  ShardReader reader(checkpoint);
  const CompiledPlan& plan = model.plan();
  for (const Read& read : reads) {
    ReadInto(reader, read,
             LocalIntervals(read.parameter->shape, read.parameter->placement, plan.mesh, model.mesh().rank()));
  }

  Diagnostics warnings;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (used.contains(tensor.name)) continue;
    Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "the model has no tensor '" + tensor.name + "'");
    d.severity = Severity::kWarning;
    d.path = checkpoint.files()[tensor.file].path;
    warnings.push_back(std::move(d));
  }
  return warnings;
}

}  // namespace moonshard
